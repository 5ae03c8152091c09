"""Every reader of outside texts takes linear work for every shape of the three dialects: what it does is counted."""

import asyncio
import gc
import json
import sys
from contextlib import suppress
from functools import partial
from itertools import islice
from types import SimpleNamespace

import pytest
from fastapi import Request

from ragbandit.router.api import reading
from ragbandit.router.api.openai.endpoints import Completions
from ragbandit.router.api.openai.requests import ChatBody
from ragbandit.router.api.reading import body_value
from ragbandit.router.queue.stream_reader import ReadStream
from ragbandit.router.replies import values
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.model_servers import openai_client
from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.shared.texts import json_values
from ragbandit.shared.types import Conversation, Cost, Outcome, Query
from ragbandit.strategies import base
from ragbandit.strategies.answer_stream import AnswerStream
from ragbandit.strategies.generators.chat_generator import ChatGenerator
from tests.support import dialects
from tests.support.additions import ANTHROPIC, door_module

MESSAGES, RESPONSES = door_module("anthropic"), door_module("responses")
#: characters that are parsed or written as JSON, and characters that are copied, in about the time of a call
WRITTEN, COPIED = 16, 4096


class Text(str):
    """A text whose comparisons are calls, and whose copies count."""

    __slots__ = ()
    work: "Work"

    def __eq__(self, other):
        return str.__eq__(self, other)

    __hash__ = str.__hash__

    def _copied(self, text):
        Text.work.count += len(text) // COPIED
        return Text(text)

    def __add__(self, other):
        return self._copied(str.__add__(self, other))

    def __radd__(self, other):
        return self._copied(other + str(self))

    def __getitem__(self, key):
        return self._copied(str.__getitem__(self, key))


class Object(dict):
    """An object whose comparisons are calls."""

    __slots__ = ()
    __hash__ = None

    def __eq__(self, other):
        return dict.__eq__(self, other)


class List(list):
    """A list whose comparisons are calls, and whose copies count."""

    __slots__ = ()
    __hash__ = None

    def __eq__(self, other):
        return list.__eq__(self, other)

    def __add__(self, other):
        Text.work.count += len(self) + len(other)
        return List(list.__add__(self, other))


def watched(value):
    """A copy of a parsed value that counts what is done with it."""
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, list):
        return List(map(watched, value))
    return Object((Text(name), watched(one)) for name, one in value.items()) if isinstance(value, dict) else value


class Work:
    """Counts calls of functions, comparisons of parsed values, and characters that are copied, parsed or written."""

    def __init__(self, monkeypatch) -> None:
        self.count, self._monkeypatch = 0, monkeypatch
        encode, parse, write = json.JSONEncoder.encode, json_values.parser(), json_values.encoder()
        self._patched = [
            (json, "loads", self._parsing(json.loads)),
            (json.JSONEncoder, "encode", lambda one, value: self._written(encode(one, value))),
            (values, "to_json", lambda *given, to=values.to_json, **more: self._written(to(*given, **more))),
            (json_values, "parser", lambda: self._parsing(parse)),
            (json_values, "encoder", lambda: lambda value: self._written(write(value))),
        ]

    def _written(self, text):
        self.count += len(text) // WRITTEN
        return text

    def _parsing(self, parse):
        def parsed(text, **more):
            self.count += len(text) // WRITTEN
            value = parse(text, **more)
            sys.setprofile(None)
            try:
                return watched(value)
            finally:
                sys.setprofile(self._note)

        return parsed

    def _note(self, _frame, event, _argument):
        if event in ("call", "c_call"):
            self.count += 1

    def of(self, work) -> int:
        """The work that a function does."""
        self.count, Text.work = 0, self
        with self._monkeypatch.context() as patch:
            for owner, name, counted in self._patched:
                patch.setattr(owner, name, counted)
            gc.disable()  # its finalizers of earlier objects are calls too
            sys.setprofile(self._note)
            try:
                work()
            finally:
                sys.setprofile(None)
                gc.enable()
        return self.count


@pytest.fixture(scope="module")
def service(serve_module):
    generator = {"name": "openai", "model": "m", "openai": {"base_url": "http://127.0.0.1:9/v1"}}
    return serve_module(inline=True, generator=generator, arms={"a": {"class": "model"}})


@pytest.fixture(scope="module")
def run():
    """Runs a coroutine to its end, on one event loop for all texts."""
    with asyncio.Runner() as runner:
        yield runner.get_loop().run_until_complete


GENERATORS = {
    "openai": ChatGenerator("m", options=OpenAiOptions(base_url="http://127.0.0.1:9/v1", api_key_env="NO_KEY")),
}
if ANTHROPIC is not None:
    OPTIONS = ANTHROPIC.options_type(base_url="http://127.0.0.1:9", api_key_env="NO_KEY")
    GENERATORS["anthropic"] = ANTHROPIC("m", options=OPTIONS)
PROMPT = base.Prompt(instructions="", body="q")


class ReadAtOnce:
    """Reads on the calling thread, where work is counted, in place of the reading thread."""

    async def read(self, _size, read, *given, **more):
        return read(*given, **more)


def asked(service, body, *, door, run, monkeypatch):
    """Read a request at a door, and write it for both kinds of servers."""
    monkeypatch.setattr(reading, "LARGE", 0)  # the values of small bodies are counted too
    monkeypatch.setattr(reading, "READING", ReadAtOnce())
    request = Request(
        {"type": "http", "method": "POST", "headers": [], "app": service.app, "path": "/", "query_string": b""}
    )
    request._body = body
    kind, chats = {
        "chat": (ChatBody, Completions()),
        **({} if MESSAGES is None else {"messages": (MESSAGES.MessagesBody, MESSAGES.Messages())}),
        **({} if RESPONSES is None else {"responses": (RESPONSES.ResponseBody, RESPONSES.Responses())}),
    }[door]
    read = run(chats.read(request, kind.model_validate(body_value(body)), key=None))
    for generator in GENERATORS.values():
        request = base.Request(prompt=PROMPT, max_tokens=9, conversation=read.query.conversation)
        run(generator._call_of(request).fields())


def serve_once(monkeypatch, body):
    """Let every server of a model reply with these bytes, which are read on this thread, where work is counted."""

    async def post(*_given, **_more):
        return SimpleNamespace(status=200, close=lambda: None)

    async def chunks(_reply):
        for at in range(0, len(body), 65_536):
            yield body[at : at + 65_536]

    monkeypatch.setattr(openai_client.ModelServer, "post", post)
    monkeypatch.setattr(openai_client, "_chunks", chunks)
    monkeypatch.setattr(openai_client, "LARGE", 1 << 60)


def replied(body, *, server, decision, run, monkeypatch):
    """Read a reply of a server while it is streamed to a caller, and write it for all three doors."""
    serve_once(monkeypatch, body)
    doors = [
        Completions(include_usage=True).stream(decision, base=""),
        *([] if MESSAGES is None else [MESSAGES.Messages().stream(decision, base="")]),
        *([] if RESPONSES is None else [RESPONSES.Responses().stream(decision, base="")]),
    ]

    def drain():
        for event in stream.read():
            for door in doors:
                door.of(event)

    stream = ReadStream(decision.id, wake=drain)
    reader = AnswerStream(stream)
    sink = reader.sink(str)
    request = base.Request(
        prompt=PROMPT,
        max_tokens=10**6,
        conversation=Conversation(fields={"messages": [], "stream": True}),
        sink=sink,
        delta_sink=reader.delta_sink(),
    )
    done = run(GENERATORS[server].complete(request))
    run(sink.end(done.text))
    outcome = Outcome(
        decision_id=decision.id,
        status="answered",
        answer=done.text,
        reply=done.details["reply"],
        cost=Cost(prompt_tokens=9),
        trace=(),
        steps=0.0,
        stop_reason="answered",
        error=None,
        run_by="worker",
        made_by={},
        made_at=1.0,
    )
    for event in stream.finish(outcome)[:-1]:
        for door in doors:
            door.of(event)
    for door in doors:
        door.end(outcome, saved=None)
    wholes = [Completions(), *([] if MESSAGES is None else [MESSAGES.Messages()])]
    wholes += [*([] if RESPONSES is None else [RESPONSES.Responses()])]
    for door in wholes:
        values.json_of(door.whole_reply(decision, outcome, base="", saved=None))


def shapes():
    """(name, how it is read, where, function from a number to the bytes) of every shape of the three dialects."""
    asked_at = [("chat", dialects.CHAT)]
    asked_at += [] if MESSAGES is None else [("messages", dialects.MESSAGES)]
    asked_at += [] if RESPONSES is None else [("responses", dialects.RESPONSES)]
    for door, example in asked_at:
        for name, shape in dialects.documents(example):
            yield f"{door}: {name}", "asked", door, lambda n, shape=shape: dialects.body_of(shape(n))
    wholes = (("openai", dialects.COMPLETION), ("openai", dialects.CHUNK), ("anthropic", dialects.MESSAGE))
    for server, example in (one for one in wholes if one[0] in GENERATORS):
        for name, shape in dialects.documents(example):
            yield f"{server} whole: {name}", "replied", server, lambda n, shape=shape: dialects.body_of(shape(n))
    for server, streams in (("openai", dialects.chunks()), ("anthropic", dialects.events())):
        if server not in GENERATORS:
            continue
        for name, shape in streams:
            body = partial(dialects.stream_of, named=server == "anthropic")
            yield f"{server} stream: {name}", "replied", server, lambda n, shape=shape, body=body: body(shape(n))


def growth(work, read, shape, *, size):
    """The work for a text of this size, of twice and of four times this size. A reader may refuse a text."""
    counts = []
    for number in (size, 2 * size, 4 * size):
        text = shape(number)

        def run(text=text):
            with suppress(RagBanditError, ValueError):
                read(text)

        counts.append(work.of(run))
    return counts


def is_linear(counts):
    """Whether the second step of the size, which is twice the first, takes at most twice its work and a quarter more;
    work that grows with the square takes four times as much.
    """
    first, second = counts[1] - counts[0], counts[2] - counts[1]
    return second <= 2.5 * max(first, 0) + 500


def readers(service, run, monkeypatch):
    """How a text is read -> function from where it is read to the function that reads it."""
    decision = service.router.route(Query(text="q"))
    return {
        "asked": lambda where: partial(asked, service, door=where, run=run, monkeypatch=monkeypatch),
        "replied": lambda where: partial(replied, server=where, decision=decision, run=run, monkeypatch=monkeypatch),
    }


@pytest.mark.timeout(240)
def test_every_shape_is_read_or_refused(service, run, monkeypatch):
    """No shape raises another error than those that callers get with their cause."""
    read, failed = readers(service, run, monkeypatch), {}
    for name, how, where, shape in shapes():
        try:
            read[how](where)(shape(20))
        except (RagBanditError, ValueError):
            continue
        except Exception as error:
            failed[name] = repr(error)
    assert failed == {}


def superlinear(service, run, monkeypatch, *, size, names):
    """The shapes whose work grows faster than their size: name -> work. names: chooses the shapes."""
    work, read, found = Work(monkeypatch), readers(service, run, monkeypatch), {}
    for name, how, where, shape in names(shapes()):
        reader = read[how](where)
        counts = growth(work, reader, shape, size=size)
        for _ in range(6):  # what is done for the first time, and what other threads delay, takes more
            if not is_linear(counts):
                counts = list(map(min, counts, growth(work, reader, shape, size=size)))
        if not is_linear(counts):
            found[name] = counts
    return found


@pytest.mark.timeout(240)
def test_some_shapes_take_linear_work(service, run, monkeypatch):
    """Every thirteenth shape is read; the slow test reads all of them."""
    found = superlinear(service, run, monkeypatch, size=40, names=lambda of_all: islice(of_all, 0, None, 13))
    assert found == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("size", [40, 300])
def test_every_shape_takes_linear_work(service, run, monkeypatch, size):
    """No shape of a request, of a whole reply or of a stream takes work that grows faster than its size."""
    assert superlinear(service, run, monkeypatch, size=size, names=iter) == {}


@pytest.mark.parametrize(
    "read",
    [
        lambda values: [name for name in values if name not in [*values]],
        lambda values: [values.count(one) for one in values],
        lambda values: [json.dumps(values) for _ in values],
        lambda values: [values + values for _ in values],
        lambda values: [json_values.json_value(b"[" + b"1," * len(values) + b"1]") for _ in values],
    ],
    ids=["names in a list", "objects in a list", "written again", "copied again", "parsed again"],
)
def test_work_that_is_not_linear_is_seen(monkeypatch, read):
    """The meter sees work in C too: comparisons in lists, copies, and JSON that is written or parsed again."""
    work = Work(monkeypatch)

    def shape(number):
        return json.dumps([f"name {one}" for one in range(number)]).encode()

    assert not is_linear(growth(work, lambda body: read(json_values.json_value(body)), shape, size=100))
    assert is_linear(growth(work, json_values.json_value, shape, size=100))

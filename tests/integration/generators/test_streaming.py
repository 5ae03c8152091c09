"""What generators give out while they write: the contract over real HTTP."""

import asyncio
import time

import pytest

from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.shared.types import Conversation
from ragbandit.strategies.answer_stream import AnswerStream
from ragbandit.strategies.base import Prompt, Request
from ragbandit.strategies.generators.chat_generator import ChatGenerator
from ragbandit.strategies.generators.openai_generator import OpenAiGenerator
from ragbandit.testing.doubles import STREAM_CHECKS, TEXT, RecordingReader
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.support.servers.openai_calls import ask

pytestmark = pytest.mark.timeout(120)

CHECKS = pytest.mark.parametrize("check", STREAM_CHECKS, ids=lambda check: check.__name__)


def openai_generator(server, **options):
    return OpenAiGenerator("gpt", options=OpenAiOptions(base_url=server.url, **options))


@CHECKS
@pytest.mark.parametrize("options", [{"prefix": "continue"}, {"prefix": "user"}], ids=str)
def test_openai_keeps_the_contract(check, options):
    """A server's stream is given out as it comes, also where a prefix may be repeated."""
    with ScriptedServer(lambda _: Reply(text=TEXT, obedient=False)) as server:
        check(lambda _text: openai_generator(server, **options))


def pieces_of(server, *, prompt=None, **options):
    """(completion, pieces) of one call; or (error, pieces)."""
    reader = RecordingReader()

    async def run():
        generator, sink = openai_generator(server, **options), AnswerStream(reader).sink(str)
        asked = prompt or Prompt(instructions="", body="Where?")
        try:
            done = await generator.complete(Request(prompt=asked, max_tokens=99, sink=sink))
            await sink.end(done.text)
            return done
        except ArmFailed as error:
            return error
        finally:
            await generator.close()

    return asyncio.run(run()), reader.pieces


def test_stream_as_the_caller_reads():
    """The option `stream: caller` requests a stream only if the caller reads pieces."""
    with ScriptedServer([TEXT, TEXT]) as server:
        done, pieces = pieces_of(server, stream="caller")
        whole, _ = ask(server, stream="caller")
        streamed = [request.body["stream"] for request in server.requests]
    assert "".join(pieces) == TEXT == done.text == whole.text
    assert streamed == [True, False]


@pytest.mark.parametrize(
    ("chat", "seconds", "successor", "streamed"),
    [
        ({"messages": []}, 9, False, False),
        ({"messages": []}, 9, True, True),
        ({"messages": []}, 99, False, True),
        ({"messages": []}, None, False, True),
        (None, 9, False, True),
    ],
)
def test_whole_chats_are_streamed_if_silence_matters(chat, seconds, successor, streamed):
    """A whole chat is requested whole if no arm can take over and its time limit is at most `read_s`."""
    request = Request(
        prompt=Prompt(instructions="", body="Where?"),
        max_tokens=9,
        conversation=chat and Conversation(fields=chat),
        deadline=None if seconds is None else time.monotonic() + seconds,
        has_successor=successor,
    )
    generator = ChatGenerator("gpt", options=OpenAiOptions(base_url="http://127.0.0.1:9/v1"))
    assert generator._call_of(request).is_streamed is streamed


def test_characters_cut_by_the_network_are_whole():
    """A stream that comes byte by byte, and a character sent as two halves, give no replacement character."""
    with ScriptedServer(lambda _: Reply(text="Zürich 北京 👍 ja", drip_s=0.0001)) as server:
        done, pieces = pieces_of(server)
    assert "".join(pieces) == done.text == "Zürich 北京 👍 ja"
    with ScriptedServer(lambda _: Reply(text="a \ud83d \udc4d b")) as server:  # halves that do not meet are none
        done, pieces = pieces_of(server)
    assert "".join(pieces) == done.text == "a \ufffd \ufffd b"


def test_the_deadline_leaves_what_was_given():
    """At the deadline text and pieces are the same, while the server goes on and the reader is slow."""

    class Slow(RecordingReader):
        async def text(self, piece):
            self.pieces.append(piece)
            await asyncio.sleep(0.05)

    reader = Slow()

    async def run(server):
        generator, sink = openai_generator(server), AnswerStream(reader).sink(str)
        prompt = Prompt(instructions="", body="Where?")
        try:
            done = await generator.complete(
                Request(prompt=prompt, max_tokens=99, sink=sink, deadline=time.monotonic() + 2.0)
            )
            await sink.end(done.text)
            return done
        finally:
            await generator.close()

    with ScriptedServer(lambda _: Reply(text="word " * 90, part_s=0.05)) as server:
        done = asyncio.run(run(server))
    assert done.finish == "deadline"
    assert done.text == "".join(reader.pieces)

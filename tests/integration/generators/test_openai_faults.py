"""The generator "openai" where the server fails, dawdles or is to be spared: tries, seconds, cost, connections."""

import asyncio
import json
import re
import time

import pytest

from ragbandit.router.storage.jobs.scores import is_judgeable
from ragbandit.router.storage.rows.outcome_rows import NOT_COUNTED
from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.shared.texts.redaction import without_keys
from ragbandit.shared.types import Branch, Budget, CallFailed, Conversation, DecisionId, Generated, Query
from ragbandit.strategies.arms.basic import NoRetrieval
from ragbandit.strategies.base import Request
from ragbandit.strategies.failures import OutOfBudget, RequestRefused
from ragbandit.strategies.generators.openai_generator import OpenAiGenerator
from ragbandit.strategies.outcome import run_strategy
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from ragbandit.strategies.run import Run
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.support.servers.openai_calls import CAPITAL, ask, wait_until

#: a minute's patience for a loaded machine is no part of what is measured
pytestmark = pytest.mark.timeout(60)


#: name -> (action of the server, part of the error)
FAULTS = {
    "429": (Reply(status=429, text="slow down"), "status 429"),
    "503": (Reply(status=503, text="busy"), "status 503"),
    "cut": (Reply(text="The city of Paris is it", cut=True), ""),
    "short": (Reply(text="The city of Paris is it", short=True), "broke off"),
    "half_json": (Reply(body=b'{"choices": [{"mess'), ""),
    "bad_event": (Reply(body=b"data: {broken\n\n"), ""),
    "wrong_shape": (Reply(body=b'{"choices": "none"}'), ""),
    "no_choices": (Reply(changes={"choices": []}), "so it contains no answer"),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", ["429", "503"])
def test_a_status_that_passes_is_tried_again(name, stream):
    """A passing status is tried again; where it stays, the call fails with its cause after all attempts."""
    fault, said = FAULTS[name]
    with ScriptedServer([fault, "Paris"]) as server:
        done, _ = ask(server, stream=stream, deadline_s=20)
        assert len(server.requests) == 2
    assert (done.text, done.finish) == ("Paris", "stop")
    with ScriptedServer([fault] * 2) as server:
        error, _ = ask(server, stream=stream, retries=1)
        assert len(server.requests) == 2
    assert isinstance(error, ArmFailed)
    assert "after 2 attempts" in error.message
    assert said in error.message


@pytest.mark.parametrize(
    ("name", "stream"),
    # A whole reply has no parts to leave out.
    [*((name, True) for name in FAULTS if name not in ("429", "503")), ("half_json", False), ("no_choices", False)],
)
def test_a_broken_reply_fails_the_call(name, stream):
    """A reply that breaks off, or is none, fails the call with its cause."""
    fault, said = FAULTS[name]
    with ScriptedServer([fault] * 2) as server:
        error, _ = ask(server, stream=stream, retries=0)
        assert len(server.requests) == 1
    assert isinstance(error, ArmFailed)
    assert said in error.message


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "text/event-stream"])
def test_the_answer_of_a_server_that_does_not_stream_is_read(content_type):
    """A whole reply to a request for a stream is the answer, whatever its type says."""
    body = json.dumps({"choices": [{"message": {"content": "Paris"}}]}).encode()
    with ScriptedServer([Reply(body=body, content_type=content_type)]) as server:
        done, _ = ask(server)
    assert (done.text, done.finish, done.estimated) == ("Paris", "stop", True)


FINISHED = [{"delta": {"content": "Paris"}}, {"delta": {}, "finish_reason": "stop"}]


@pytest.mark.parametrize("end", ["silence", "comments", "break", "broken event"])
@pytest.mark.parametrize("usage", [True, False])
def test_an_answer_stands_whatever_its_connection_does(end, usage):
    """After the reason for the end the server has a moment for its usage; then the answer is given."""
    parts = [{"choices": [choice]} for choice in FINISHED] + [
        {"usage": {"prompt_tokens": 8, "completion_tokens": 2}}
    ] * usage
    events = b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in parts)
    body = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

    running = []

    async def answer(reader, writer):
        running.append(asyncio.current_task())
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)[1]))
        sent = events + (b"data: {half\n\n" if end == "broken event" else b"")
        writer.write(body + b"%x\r\n%b\r\n" % (len(sent), sent))
        while end == "comments" and not writer.is_closing():
            writer.write(b"8\r\n: ping\n\n\r\n")
            await asyncio.sleep(0.05)
        if end == "silence":
            await reader.read()
        writer.close()

    async def call():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        generator = OpenAiGenerator("gpt", options=OpenAiOptions(base_url=url, read_s=50.0))
        done = await generator.complete(Request(prompt=CAPITAL, max_tokens=24, deadline=time.monotonic() + 40))
        await generator.close()
        await asyncio.gather(*running)
        server.close()
        return done

    done = asyncio.run(asyncio.wait_for(call(), 30))
    assert (done.text, done.finish, done.estimated) == ("Paris", "stop", not usage)
    assert not usage or (done.prompt_tokens, done.completion_tokens) == (8, 2)


def test_a_call_that_fails_after_thoughts_is_paid_for():
    """Tokens that a server counts, or wrote as thoughts and calls, are paid also if the reply ends in an error."""
    message = {"content": "", "reasoning_content": "Let me see. " * 9}
    replies = [Reply(message=message, changes={"usage": None}, finish="error"), Reply(finish="error")]
    with ScriptedServer(replies) as server:
        costs = [answered(server, seconds=None, token_prices={"gpt": (1.0, 1.0)}).cost for _ in replies]
    assert costs[0].completion_tokens > 20
    assert costs[0].dollars == pytest.approx((costs[0].prompt_tokens + costs[0].completion_tokens) / 1e6)
    assert (costs[1].prompt_tokens > 0, costs[1].completion_tokens) == (True, 0)


@pytest.mark.parametrize(
    ("reply", "options", "prompt", "written"),
    [
        (Reply(seconds=30.0), {}, True, False),
        (Reply(text="word " * 400, part_s=0.02), {}, True, True),
        (Reply(seconds=30.0), {"first_piece_s": 0.3}, True, False),
        (Reply(text="The city of Paris is it", cut=True), {}, True, True),
        (Reply(status=503), {}, False, False),
        (Reply(body=b"<html>a gateway</html>"), {}, False, False),
        (Reply(body=b'{"choices": [{"message": {"content": "Par'), {}, True, False),
    ],
    ids=["silent", "writing", "late", "cut", "error", "no answer", "half a document"],
)
def test_what_was_asked_of_a_model_is_booked(reply, options, prompt, written):
    """A call that is cancelled, late or cut costs its prompt and what came; an error of the server costs nothing."""
    with ScriptedServer({"": reply}) as server:

        async def run_it():
            generator = OpenAiGenerator(
                "gpt",
                options=OpenAiOptions(base_url=server.url, retries=0, token_prices={"gpt": (1e6, 1e6)}, **options),
            )
            request, task = Request(prompt=CAPITAL, max_tokens=500), None
            task = asyncio.create_task(generator.complete(request))
            while not server.requests:
                await asyncio.sleep(0.01)
            runs_on = (reply.seconds or reply.part_s) and not options  # else the call ends by itself
            await asyncio.wait([task], timeout=2.0 if runs_on else None)
            task.cancel()
            await asyncio.wait([task])
            await generator.close()
            return request.lost.cost

        cost = asyncio.run(asyncio.wait_for(run_it(), 20))
    assert (cost.prompt_tokens > 0, cost.completion_tokens > 0) == (prompt, written)
    assert cost.dollars == pytest.approx(cost.prompt_tokens + cost.completion_tokens)


def test_nothing_is_booked_where_nothing_was_asked():
    """A call that never got to the server costs nothing; a lost attempt before an answer is booked with it."""

    async def refused():
        generator = OpenAiGenerator("gpt", options=OpenAiOptions(base_url="http://127.0.0.1:9/v1", retries=0))
        request = Request(prompt=CAPITAL, max_tokens=5)
        with pytest.raises(ArmFailed):
            await generator.complete(request)
        await generator.close()
        return request.lost.cost

    assert asyncio.run(asyncio.wait_for(refused(), 20)).prompt_tokens == 0


@pytest.mark.parametrize(
    ("first", "dollars"),
    [
        (b"", 0.0),
        (b"HTTP/1.1 200 OK\r\nx-litellm-response-cost: 0.5\r\ncontent-length: 99\r\n\r\n", 0.5),
        (b"HTTP/1.1 502 No\r\nx-litellm-response-cost: 0.5\r\ncontent-length: 0\r\n\r\n", None),
    ],
    ids=["no reply", "a price in the headers", "an error"],
)
def test_an_attempt_that_is_repeated_is_booked(first, dollars):
    """An answer at the second attempt costs the prompt of the first one too, since the server may have read it, or
    the price that the first one has reported, which counts once. An error costs nothing.
    """
    body = json.dumps({"choices": [{"message": {"content": "Paris"}, "finish_reason": "stop"}]}).encode()
    connections = []

    async def hang_up_once(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        connections.append(writer)
        writer.write(first if len(connections) == 1 else b"")
        if len(connections) > 1:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
            writer.write(body)
            await writer.drain()
        writer.close()

    async def call():
        server = await asyncio.start_server(hang_up_once, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        generator = OpenAiGenerator("gpt", options=OpenAiOptions(base_url=url, retries=1))
        request = Request(prompt=CAPITAL, max_tokens=24)
        done = await generator.complete(request)
        await generator.close()
        server.close()
        return done, request.lost.cost

    done, lost = asyncio.run(asyncio.wait_for(call(), 20))
    assert (done.text, done.estimated, len(connections)) == ("Paris", True, 2)
    assert (lost.prompt_tokens, lost.completion_tokens) == (0 if dollars is None else done.prompt_tokens, 0)
    assert (lost.dollars, done.dollars) == (dollars or 0.0, 0.0)


def test_a_price_of_the_attempt_before_is_not_booked_again():
    """The second attempt is refused without a price, so it costs nothing."""
    replies = [
        b"HTTP/1.1 200 OK\r\nx-litellm-response-cost: 0.5\r\ncontent-length: 99\r\n\r\n",
        b"HTTP/1.1 502 No\r\ncontent-length: 0\r\n\r\n",
    ]

    async def hang_up(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(replies.pop(0))
        await writer.drain()
        writer.close()

    async def call():
        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        generator = OpenAiGenerator("gpt", options=OpenAiOptions(base_url=url, retries=1))
        request = Request(prompt=CAPITAL, max_tokens=24)
        with pytest.raises(ArmFailed):
            await generator.complete(request)
        await generator.close()
        server.close()
        return request.lost.cost

    lost = asyncio.run(asyncio.wait_for(call(), 20))
    assert (lost.dollars, replies) == (0.5, [])


@pytest.mark.parametrize("as_event", [True, False])
def test_an_error_with_a_price_is_booked(as_event):
    """The price that a server reports with an error is counted."""
    fault = json.dumps({"error": {"message": "the upstream is gone", "code": 502}, "usage": {"cost": 0.25}})
    body = f"data: {fault}\n\n" if as_event else fault
    with ScriptedServer([Reply(body=body.encode())]) as server:

        async def call():
            generator = OpenAiGenerator("gpt", options=OpenAiOptions(base_url=server.url, retries=0))
            request = Request(prompt=CAPITAL, max_tokens=24)
            with pytest.raises(ArmFailed):
                await generator.complete(request)
            await generator.close()
            return request.lost.cost

        assert asyncio.run(asyncio.wait_for(call(), 20)).dollars == 0.25


def answered(server, *, seconds, retries=1, **more):
    async def run_it():
        options = OpenAiOptions(base_url=server.url, retries=retries, **more)
        generator = OpenAiGenerator("gpt", options=options)
        try:
            return await run_strategy(
                NoRetrieval(max_tokens=300),
                query=Query(text="Where is the ferry?", id=DecisionId("d1")),
                budget=Budget(seconds=seconds),
                retriever=MemoryRetriever([]),
                generator=generator,
            )
        finally:
            await generator.close()

    return asyncio.run(asyncio.wait_for(run_it(), 30))


@pytest.mark.parametrize(
    "message",
    [{"reasoning": "x" * 400_001}, {"content": [{"type": "x"}] * 10_001}, {"content": "a", "tool_calls": [{}] * 129}],
    ids=["message", "parts", "calls"],
)
def test_a_reply_beyond_a_cap_fails_alone(message):
    """The outcome is "unreadable", which counts neither against the arm's health nor as a quality of 0."""
    body = json.dumps({"choices": [{"message": {"role": "assistant", **message}, "finish_reason": "stop"}]}).encode()
    with ScriptedServer([Reply(body=body)]) as server:
        outcome = answered(server, seconds=20)
        assert len(server.requests) == 1
    assert (outcome.status, outcome.stop_reason) == ("failed", "unreadable")
    assert "more than" in outcome.error
    assert outcome.stop_reason in NOT_COUNTED
    assert not is_judgeable(outcome)


def test_no_pause_outlasts_the_deadline():
    """If the server asks for more than the question has, the call fails at once with the server's words and time."""
    with ScriptedServer([Reply(status=429, text="slow down", retry_after=20.0), "Paris"]) as server:
        error, seconds = ask(server, deadline_s=10.0)
        assert len(server.requests) == 1
    assert "slow down" in error.message
    assert (error.failure.kind, error.failure.retry_after_s) == ("limited", 20.0)
    assert seconds < 5


#: replies of OpenAI and vLLM, of older versions of vLLM, and of llama.cpp
LONG_PROMPTS = [
    Reply(status=400, code="context_length_exceeded", text="This model takes 10 tokens."),
    Reply(status=400, body=b'{"object": "error", "message": "The maximum context length is 10 tokens.", "code": 400}'),
    Reply(status=400, body=b'{"error": {"code": 400, "message": "too long", "type": "exceed_context_size_error"}}'),
    Reply(status=400, body=b'{"error": {"code": {"odd": 1}, "message": "beyond the Context Window"}}'),
    # parsed by the reading thread
    Reply(status=400, body=b'{"request": "%s", "error": {"message": "beyond the context window"}}' % (b"x" * 100_000)),
]


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [
        (Reply(status=400, text="what?"), "max_tokens_field"),
        (Reply(status=401, text="who?"), "OPENAI_API_KEY"),
        (Reply(status=404, text="no such model"), "generator.model"),
        *((fault, "generator.context_tokens") for fault in LONG_PROMPTS),
    ],
)
def test_a_fault_that_stays_fails_at_once(fault, remedy):
    """A refusal, also of a prompt that is too long by any server's words, is not tried again, and says what to do."""
    with ScriptedServer([fault, "Paris"]) as server:
        error, _ = ask(server)
        assert len(server.requests) == 1
    assert isinstance(error, ArmFailed)
    assert remedy in error.remedy


FILE = {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "model0"}}]}]}
TEXT = {"messages": [{"role": "user", "content": "Which model?"}]}


@pytest.mark.parametrize(
    ("chat", "reply", "gone", "is_refused"),
    [
        (TEXT, Reply(status=404, text="no such model"), "words", False),
        (TEXT, Reply(status=404, text="The model `gpt` does not exist"), "named", False),
        (FILE, Reply(status=404, text="File not found: model0 of the model gpt"), None, True),
        (FILE, Reply(status=404, text="no such model", code="model_not_found"), None, False),
        (None, Reply(status=410, text="gone"), "named", False),
    ],
)
def test_what_a_404_is_about(chat, reply, gone, is_refused):
    """A 404 is a sign about the model if the chat names no file; of a file it counts against the chat, not the arm."""
    with ScriptedServer([reply]) as server:
        error, _ = ask(server, request={"conversation": chat and Conversation(fields=chat)})
    assert (error.failure.gone, isinstance(error, RequestRefused)) == (gone, is_refused)
    assert error.failure.kind == "denied"


KEY = "configured-key-0123456789"
TOKEN = "sk-proj-Abc_123-xyzXYZ789"

#: name -> (reply, stream)
LEAKS = {
    "401": (Reply(status=401, text=f"Incorrect API key provided: {KEY}, {TOKEN}."), True),
    "masked": (Reply(status=401, text=f"{KEY}; or sk-abcd1234**********wxyz."), True),
    "500": (Reply(status=500, text=f"upstream said {KEY} {TOKEN}"), True),
    "cut": (Reply(status=400, text="x" * 190 + KEY + " " + TOKEN), True),
    "cut token": (Reply(status=400, text="x" * 190 + " " + TOKEN + " " + KEY), True),
    "event": (Reply(body=b'data: {"error": {"message": "' + f"{KEY} {TOKEN}".encode() + b'"}}\n\n'), True),
    "message": (Reply(message={"content": "", "error": {"a": "y" * 50 + f"{KEY} {TOKEN}"}}), False),
    "header": (Reply(status=429, retry_after=3600.0, text=f"{KEY} {TOKEN}"), True),
}


@pytest.mark.parametrize(("by", "name"), [*(("key", name) for name in LEAKS), ("headers", "cut token")])
def test_no_error_repeats_a_secret(name, by, monkeypatch):
    """The key, what looks like one of OpenAI's, and other headers are in no outcome, wherever a server writes them."""
    headers = {"cookie": f"session={KEY}; other=x", "x-api-key": f"Token {TOKEN}"} if by == "headers" else {}
    if by == "key":
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
    fault, stream = LEAKS[name]
    with ScriptedServer([fault]) as server:
        outcome = answered(server, seconds=10.0, retries=0, stream=stream, headers=headers)
        sent = server.requests[0].headers
        assert sent["cookie" if headers else "authorization"] == headers.get("cookie", f"Bearer {KEY}")
    assert outcome.status == "failed"
    assert "[key" in outcome.error
    kept = f"{outcome.error} {outcome.trace}"
    for secret in (KEY, TOKEN, "wxyz")[: 1 if headers else 3]:
        assert not any(secret[start : start + 6] in kept for start in range(max(1, len(secret) - 5)))


@pytest.mark.parametrize(
    ("secret", "text", "kept"),
    [
        (
            'say"friend\\now',
            r"in JSON \"say\"friend\\now\", plain say" + '"friend\\now',
            'in JSON \\"[key]\\", plain [key]',
        ),
        ('say"friend', r"{\"key\": \"say\\\"friend\"}", r"{\"key\": \"[key]\"}"),
        ("it's\"me, now", repr("it's\"me, now"), "'[key]'"),
        ("one/two&three", r"one\/two\u0026three ONE/two&three", "[key] ONE/two&three"),
        ("one/two&three", "one%2ftwo%26three one/two&amp;three one&#x2F;two&#38;three", "[key] [key] [key]"),
        ("Basic a+b/c d", "Basic+a%2Bb%2Fc%20d", "[key]"),
        ("Token  abc  def", "Token abc def, abc, def, defs", "[key], abc, [key], defs"),
        ('Digest user="alexandra",realm="x"', "user alexandra of x", "user [key] of x"),
        ("a=longenough;b=short", "longenough, short, b=short", "[key], short, b=short"),
        ("", "as it is", "as it is"),
    ],
)
def test_secrets_are_hidden_as_they_are_repeated(secret, text, kept):
    """A value is hidden as JSON, JSON in JSON, repr, URLs or HTML escape it; so are its longer pieces and last word."""
    assert without_keys(text, secrets=[secret]) == kept


def test_deadline_leaves_the_text_so_far():
    """At the deadline the text so far comes back, and the connection is closed, which frees the server."""
    slow = Reply(text="one two three four five six seven eight nine ten " * 20, part_s=0.05)
    with ScriptedServer({"": slow}) as server:
        done, seconds = ask(server, deadline_s=2.0, max_tokens=500)
        wait_until(lambda: server.abandoned == 1)
    assert done.finish == "deadline"
    assert done.text.startswith("one")
    assert 1.9 < seconds < 9.0
    assert done.completion_tokens > 0


@pytest.mark.parametrize("by", ["option", "environment"])
def test_nobody_there(by, monkeypatch):
    """A server that cannot be reached fails the call after its attempts, and is named without a password."""
    with ScriptedServer([]) as server:
        pass
    if by == "environment":
        monkeypatch.setenv("OPENAI_BASE_URL", server.url.replace("//", "//me:word@"))
    error, seconds = ask(server, retries=1, **({} if by == "option" else {"base_url": None}))
    assert "word" not in str(error)
    assert isinstance(error, ArmFailed)
    assert "after 2 attempts" in error.message
    assert f"{server.url} cannot be reached" in error.message
    assert "generator.openai.base_url" in error.remedy
    assert seconds < 10


def test_concurrency_is_capped():
    """No more requests are under way at once than concurrency allows."""
    under_way, most = 0, 0

    def slow(body):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        time.sleep(0.05)
        under_way -= 1
        return "Paris"

    with ScriptedServer(slow) as server:

        async def many():
            generator = OpenAiGenerator("gpt", options=OpenAiOptions(base_url=server.url, concurrency=2))
            await asyncio.gather(*(generator.complete(Request(prompt=CAPITAL, max_tokens=4)) for _ in range(8)))
            await generator.close()

        asyncio.run(asyncio.wait_for(many(), 20))
    assert most == 2


def test_cancelling_frees_the_server():
    """A cancelled call closes its connection."""
    with ScriptedServer({"": Reply(text="word " * 400, part_s=0.02)}) as server:

        async def cancelled():
            generator = OpenAiGenerator("gpt", options=OpenAiOptions(base_url=server.url))
            task = asyncio.create_task(generator.complete(Request(prompt=CAPITAL, max_tokens=500)))
            while not server.requests:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(wait_until, lambda: server.abandoned == 1)
            await generator.close()

        asyncio.run(asyncio.wait_for(cancelled(), 20))


def test_the_run_accounts_for_it():
    """A final failure is one CallFailed with its seconds; a deadline is OutOfBudget with a draft."""
    replies = [Reply(status=500, seconds=0.2), Reply(text="word " * 200, part_s=0.05)]
    with ScriptedServer(replies) as server:

        async def run_it():
            generator = OpenAiGenerator("gpt", options=OpenAiOptions(base_url=server.url, retries=0))
            run = Run(
                query=Query(text="?"), retriever=MemoryRetriever([]), generator=generator, budget=Budget(seconds=3.0)
            )
            with pytest.raises(ArmFailed):
                await run.complete(CAPITAL, purpose="answer", max_tokens=300)
            with pytest.raises(OutOfBudget):
                await run.complete(CAPITAL, purpose="answer", max_tokens=300)
            await generator.close()
            return run

        run = asyncio.run(asyncio.wait_for(run_it(), 20))
    assert [type(event) for event in run.trace] == [CallFailed, Generated, Branch]
    assert run.trace[2] == Branch(rule="tokens_estimated", value="answer")
    assert run.trace[0].seconds >= 0.2
    assert run.cost.llm_calls == 2
    assert run.partial.startswith("word")

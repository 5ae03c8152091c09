"""A model's server that breaks off after any byte of its reply: no call hangs, and no half answer is a whole one."""

import asyncio

import pytest

from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.shared.types import Conversation
from ragbandit.strategies.base import Request
from ragbandit.strategies.generators.chat_generator import ChatGenerator
from tests.support.additions import ANTHROPIC
from tests.support.servers.cut_server import CALLS, CHAT, DOCUMENT, MESSAGE, MESSAGES, CutServer
from tests.support.servers.openai_calls import CAPITAL

PRICES = {"m": (1.0, 2.0)}
TOOLS = {"messages": [{"role": "user", "content": "?"}], "tools": [{"type": "function", "function": {"name": "f"}}]}
#: name -> (body, class, whether it is a stream, the chat of a client)
REPLIES = {
    "chat": (CHAT, ChatGenerator, True, None),
    "calls": (CALLS, ChatGenerator, True, Conversation(fields=TOOLS)),
    "document": (DOCUMENT, ChatGenerator, False, None),
}
if ANTHROPIC is not None:
    REPLIES |= {"messages": (MESSAGES, ANTHROPIC, True, None), "message": (MESSAGE, ANTHROPIC, False, None)}


def message_of(completion):
    """The message of a reply to a client's chat, with its calls; None for other replies."""
    return completion.details.get("reply", {}).get("message")


async def cut_everywhere(name: str, *, is_counted: bool):
    """For each number of bytes: (completion or error, pieces that the caller got, cost of a lost call)."""
    body, kind, streams, conversation = REPLIES[name]
    server = CutServer(body, is_counted=is_counted)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    options = OpenAiOptions if kind is ChatGenerator else ANTHROPIC.options_type
    base_url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    generator = kind("m", options=options(base_url=base_url, retries=0, stream=streams, token_prices=PRICES))
    results = []
    for server.cut in range(len(body) + 1):
        pieces = []

        async def take(text, pieces=pieces):
            pieces.append(text)

        request = Request(prompt=CAPITAL, max_tokens=50, conversation=conversation, sink=take if streams else None)
        try:
            async with asyncio.timeout(10):
                result = await generator.complete(request)
        except ArmFailed as error:
            result = error
        results.append((result, pieces, request.lost.cost))
    await generator.close()
    listening.close()
    return results


@pytest.mark.parametrize(
    ("name", "is_counted"), [*((name, False) for name in REPLIES), ("chat", True), ("document", True)]
)
def test_a_reply_that_is_cut_at_any_byte(name, is_counted):
    """A cut call fails and is paid for, or its answer had come whole; readers get only beginnings of the answer."""
    results = asyncio.run(cut_everywhere(name, is_counted=is_counted))
    body = REPLIES[name][0]
    whole, _, nothing = results[-1]
    assert not isinstance(whole, ArmFailed)
    assert nothing.dollars == 0.0
    done = [at for at, (result, _, _) in enumerate(results) if not isinstance(result, ArmFailed)]
    end = body.index(b'"finish_reason":"' if b"choices" in body else b'"stop_reason":"')
    assert done == [*range(done[0], len(body) + 1)]
    assert end < done[0]
    for result, pieces, lost in results:
        if isinstance(result, ArmFailed):
            assert result.message
            assert lost.dollars > 0.0 or not lost.prompt_tokens
        else:
            assert (result.text, message_of(result)) == (whole.text, message_of(whole))
            assert lost.dollars == 0.0
        assert all(map(whole.text.startswith, pieces))
    assert any(results[-1][1]) == (REPLIES[name][2] and bool(whole.text))

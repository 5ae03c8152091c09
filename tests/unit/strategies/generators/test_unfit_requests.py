"""A request that cannot be fitted to its server: the arm has not failed, and nothing was spent."""

import asyncio

import pytest

from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.shared.types import Conversation, Cost
from ragbandit.strategies.base import Prompt, Request
from ragbandit.strategies.failures import RequestRefused
from ragbandit.strategies.generators.chat_generator import ChatGenerator
from tests.support.additions import ANTHROPIC

CHAT = {"messages": [{"role": "user", "content": "q"}]}


KINDS = [(ChatGenerator, OpenAiOptions), *([(ANTHROPIC, ANTHROPIC.options_type)] if ANTHROPIC else [])]


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_a_failure_of_the_fitting_is_not_a_failure_of_the_server(kind, options, monkeypatch):
    """An error while a chat is fitted refuses the chat, costs nothing, and lets another arm answer."""
    monkeypatch.setenv("A_KEY", "k")
    monkeypatch.setattr(kind, "chat_fields", lambda *_, **__: [*5])
    generator = kind("m", options=options(base_url="http://127.0.0.1:9/v1", api_key_env="A_KEY"))
    request = Request(prompt=Prompt(instructions="", body="q"), max_tokens=9, conversation=Conversation(fields=CHAT))
    with pytest.raises(RequestRefused) as caught:
        asyncio.run(generator.complete(request))
    assert caught.value.failure.is_unable
    assert request.lost.cost == Cost()

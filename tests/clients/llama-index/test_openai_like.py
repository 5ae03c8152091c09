"""LlamaIndex's OpenAILike, as it comes from the index."""

import asyncio

import openai
import pytest
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

QUESTION = [ChatMessage(role="system", content="Be brief."), ChatMessage(content="What is the capital of France?")]


@pytest.fixture
def llm(service):
    return OpenAILike(
        model="auto",
        api_base=service.base_url,
        api_key=service.key,
        is_chat_model=True,
        context_window=100_000,
        max_retries=0,
        timeout=60,
    )


def test_chat(llm, service):
    """The answer has everything of ours in `raw`, and its tokens."""
    reply = llm.chat(QUESTION)
    assert reply.message.content == service.answer
    assert service.decision(reply.raw.id)["outcome"]["answer"] == service.answer
    assert reply.raw.model.startswith("ragbandit/")
    assert isinstance(reply.raw.ragbandit["passages"], list)
    assert reply.additional_kwargs["total_tokens"] > 0


def test_stream(llm, service):
    """Pieces make the answer."""
    *_, last = llm.stream_chat(QUESTION)
    assert last.message.content == service.answer


def test_asynchronous(llm, service):
    """Achat and astream_chat."""

    async def ask():
        pieces = [piece.delta async for piece in await llm.astream_chat(QUESTION)]
        return (await llm.achat(QUESTION)).message.content, "".join(piece or "" for piece in pieces)

    assert asyncio.run(ask()) == (service.answer, service.answer)


def test_the_setting_that_must_be_set(service):
    """Left at its default, is_chat_model asks for older completions: the error names it."""
    llm = OpenAILike(model="auto", api_base=service.base_url, api_key=service.key, max_retries=0)
    with pytest.raises(openai.NotFoundError) as caught:
        llm.complete("What is the capital of France?")
    assert "is_chat_model" in str(caught.value)

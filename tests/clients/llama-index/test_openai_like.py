"""LlamaIndex's OpenAILike, as it comes from the index."""

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

"""Chat completions: a request's messages become a question, its answer a completion, whole or in chunks."""

import time
from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import Response

from ragbandit.router.api.openai.answering import answered, query_of
from ragbandit.router.api.openai.chunks import ChatStream, Chunks
from ragbandit.router.api.openai.messages import turns_of
from ragbandit.router.api.openai.open_webui import background_task, is_open_webui, task_answer
from ragbandit.router.api.openai.replies import ID_PREFIX, ChatCompletion, completion, task_completion
from ragbandit.router.api.openai.requests import ChatBody, check_supported
from ragbandit.router.api.schemas.responses import JsonReply
from ragbandit.router.api.streaming.event_stream import EventStream, sent_at_once
from ragbandit.router.serving.checks.fields import new_id
from ragbandit.shared.types import Decision, Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chat:
    """Completions for one request. base: URL of this service."""

    body: ChatBody
    base: str
    open_webui: bool

    def whole(self, decision: Decision, outcome: Outcome, *, saved: float | None) -> ChatCompletion:
        return completion(decision, outcome, base=self.base, saved=saved)

    def stream(self, decision: Decision) -> ChatStream:
        return ChatStream(decision, include_usage=self.body.include_usage, base=self.base, open_webui=self.open_webui)


async def chat_reply(request: Request, body: ChatBody, *, key: str | None) -> Response:
    """The reply to a chat completion. key: the id that the caller chose for its decision."""
    turns = turns_of(body.messages)
    task = background_task(request.headers, turns=turns)
    if task is not None:
        return _task_reply(body, text=task_answer(task, turns=turns))
    query = query_of(request, body, key=key)
    check_supported(body)
    door = _Chat(body=body, base=str(request.base_url), open_webui=is_open_webui(request.headers))
    return await answered(request, query, turns=turns, door=door, in_pieces=bool(body.stream), named=key is not None)


def _task_reply(body: ChatBody, *, text: str) -> Response:
    key, now = f"task-{new_id()}", time.time()
    if not body.stream:
        return JsonReply(task_completion(text, task_id=key, model=body.model, now=now))
    chunks = Chunks(
        f"{ID_PREFIX}{key}", created=int(now), model=body.model, include_usage=body.include_usage, fingerprint=None
    )
    return EventStream(sent_at_once(chunks.whole(text)), headers={})

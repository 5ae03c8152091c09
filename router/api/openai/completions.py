"""Chat completions: a request's messages become a question, its answer a completion, whole or in chunks."""

import time
from functools import partial

from fastapi import Request
from fastapi.responses import Response

from ragbandit.router.api.openai.answering import answered
from ragbandit.router.api.openai.chunks import ChatStream, Chunks
from ragbandit.router.api.openai.messages import turns_of
from ragbandit.router.api.openai.open_webui import background_task, is_open_webui, task_answer
from ragbandit.router.api.openai.replies import ID_PREFIX, completion, task_completion
from ragbandit.router.api.openai.requests import ChatBody, check_supported
from ragbandit.router.api.schemas.responses import JsonReply
from ragbandit.router.api.streaming import EventStream, sent_at_once
from ragbandit.router.serving.checks.fields import new_id


async def chat_reply(request: Request, body: ChatBody, *, key: str | None) -> Response:
    """The reply to a chat completion. key: the id that the caller chose for its decision."""
    turns = turns_of(body.messages)
    task = background_task(request.headers, turns=turns)
    if task is not None:
        return _task_reply(body, text=task_answer(task, turns=turns))
    check_supported(body)
    stream = partial(ChatStream, include_usage=body.include_usage, open_webui=is_open_webui(request.headers))
    return await answered(request, body, turns=turns, key=key, named=key is not None, whole=completion, stream=stream)


def _task_reply(body: ChatBody, *, text: str) -> Response:
    key, now = f"task-{new_id()}", time.time()
    if not body.stream:
        return JsonReply(task_completion(text, task_id=key, model=body.model, now=now))
    chunks = Chunks(
        f"{ID_PREFIX}{key}", created=int(now), model=body.model, include_usage=body.include_usage, fingerprint=None
    )
    return EventStream(sent_at_once(chunks.whole(text)), headers={})

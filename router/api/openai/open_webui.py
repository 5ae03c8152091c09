"""Open WebUI: its background tasks, answered without a decision, and the ids by which its ratings come back.

Open WebUI sends the work that it does beside a chat (titles, tags, follow-up questions, search queries) to the model
of the chat, unless it has a task model of its own. Such a request is no question of a user: it is not routed, not kept
and not learned. What is replied is the least that works; docs/openai.md says how to set a task model.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from starlette.datastructures import Headers

from ragbandit.router.api.openai.errors import Unsupported
from ragbandit.shared.types import Message, Outcome

_PREFIX: Final = "x-openwebui-"
_TASK: Final = f"{_PREFIX}task"
#: headers with ids of Open WebUI -> the kind of link under which the decision is found again
_LINKS: Final = {f"{_PREFIX}message-id": "openwebui_message"}
_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")

#: how the templates of the tasks begin, after the heading -> the task
_OPENINGS: Final[Mapping[str, str]] = {
    "Generate a concise, 3-5 word title": "title_generation",
    "Generate a concise title": "title_generation",
    "Generate 1-3 broad tags categorizing": "tags_generation",
    "Suggest 3-5 relevant follow-up questions": "follow_up_generation",
    "Analyze the chat history to determine the necessity of generating search queries": "query_generation",
    "Generate a detailed prompt for am image generation task": "image_prompt_generation",
    "Generate a detailed prompt for an image generation task": "image_prompt_generation",
    "You are an autocompletion system.": "autocomplete_generation",
    "Your task is to reflect the speaker's likely facial expression": "emoji_generation",
    "You have been provided with a set of responses from various models": "moa_response_generation",
}
_HEADING: Final = re.compile(r"\s*(?:###\s*Task:\s*)?")
_TOOLS: Final = re.compile(r"\s*Available Tools: .*Your task is to choose and return the correct tool", re.DOTALL)
#: of a chat's title
_WORDS, _LONGEST_TITLE = 6, 60


def is_open_webui(headers: Headers) -> bool:
    """Whether a request says that it comes from Open WebUI."""
    return any(name.startswith(_PREFIX) for name in headers)


def links_of(headers: Headers) -> dict[str, str]:
    """Ids of Open WebUI by the kind of link; a template that it did not fill in is none."""
    ids = {kind: headers.get(name, "").strip() for name, kind in _LINKS.items()}
    return {kind: value for kind, value in ids.items() if _ID.fullmatch(value)}


def background_task(headers: Headers, *, turns: Sequence[Message]) -> str | None:
    """The task that Open WebUI asks for, or None for a chat.

    The header says it; without one, the words with which the templates of its tasks begin.
    """
    named = headers.get(_TASK, "").strip()
    if named and named not in ("default", "chat", "generation") and "{" not in named:
        return named[:64]
    if any(_TOOLS.match(turn.text) for turn in turns if turn.role == "system"):
        return "function_calling"
    first = next((turn.text for turn in turns if turn.role == "user"), "")
    opening = first[_HEADING.match(first).end() :]  # type: ignore[union-attr] # it matches the empty text too
    return next((task for words, task in _OPENINGS.items() if opening.startswith(words)), None)


def task_answer(task: str, *, turns: Sequence[Message]) -> str:
    """The reply to a background task. Raises Unsupported for one that a language model alone can do."""
    last = next((turn.text for turn in reversed(turns) if turn.role == "user"), "")
    if task == "moa_response_generation":
        remedy = "choose a language model for it in Open WebUI"
        raise Unsupported("answers of several models cannot be merged here", field="model", remedy=remedy)
    if task == "emoji_generation":
        return "\N{SPEECH BALLOON}"
    answer = _ANSWERS.get(task)
    return json.dumps(answer(last) if answer else {}, ensure_ascii=False)


def _title(prompt: str) -> dict[str, Any]:
    """The first words that the user wrote in the chat that the prompt quotes."""
    quoted = re.search(r"<chat_history>\s*(?:USER:)?\s*(.*?)\s*(?:\n(?:ASSISTANT|USER):|</chat_history>)", prompt, re.S)
    words = (quoted.group(1) if quoted else "").split()
    title = " ".join(words[:_WORDS])[:_LONGEST_TITLE].rstrip(" ,.;:?!")
    return {"title": title or "New chat"}


_ANSWERS: Final[Mapping[str, Callable[[str], dict[str, Any]]]] = {
    "title_generation": _title,
    "tags_generation": lambda _: {"tags": ["General"]},
    "follow_up_generation": lambda _: {"follow_ups": []},
    "query_generation": lambda _: {"queries": []},
    "image_prompt_generation": lambda _: {"prompt": ""},
    "autocomplete_generation": lambda _: {"text": ""},
    "function_calling": lambda _: {"tool_calls": []},
}


def status_event(text: str, *, done: bool) -> dict[str, Any]:
    """What Open WebUI shows above the answer while it is made."""
    return {"type": "status", "data": {"description": text, "done": done}}


def source_events(outcome: Outcome, *, urls: Sequence[str]) -> list[dict[str, Any]]:
    """The passages that the answer saw, as Open WebUI lists them with their text. urls: of each."""
    return [
        {
            "type": "source",
            "data": {
                "source": {"name": source.title or source.id, "url": url},
                "document": [source.text],
                "metadata": [{"source": url, "name": source.title or source.id}],
                **({} if source.score is None else {"distances": [source.score]}),
            },
        }
        for source, url in zip(outcome.sources, urls, strict=True)
    ]

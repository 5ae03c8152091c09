"""Finds the question and the answer in a logged value: a text, messages, JSON, or an object with any of these."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Final

from ragbandit.shared.json_lines import DECODER
from ragbandit.shared.model_servers.message_parts import listed, words_of

#: a role, a type of messages, or a class of LangChain
_ROLE: Final = re.compile(
    r"(?:langchain\w*messages)?(user|human|assistant|ai|model|system|developer|tool|function)(message\w*)?"
)
_ROLES: Final = {"human": "user", "ai": "assistant", "model": "assistant", "developer": "system", "function": "tool"}
#: names under which an object has its question or its answer, the most specific first
_AROUND: Final = "message text content value kwargs args data"
_ASKED: Final = f"messages question query user_input prompt input inputs request {_AROUND}"
_ANSWERED: Final = f"messages answer output response result completion choices generations outputs {_AROUND}"
#: beginnings of the types of parts whose text does not belong to the message
_OTHER_PARTS: Final = ("reason", "think", "tool", "function")


def question_of(value: Any) -> tuple[str, int] | None:
    """The last text of the user, and its number among the user's texts; None without one.

    The number is 0 if results of tools follow: such a call is a step of the answer to an earlier question.
    """
    turns = [turn for turn in _turns(value, _ASKED) if turn[0] != "system"]
    texts = [text for role, text in turns if role in ("user", "") and text]
    is_step = bool(turns) and (turns[-1][0] == "tool" or turns[-1] == ("user", ""))
    return (texts[-1], 0 if is_step else len(texts)) if texts else None


def answer_of(value: Any) -> str | None:
    texts = [text for role, text in _turns(value, _ANSWERED) if role in ("assistant", "") and text]
    return texts[-1] if texts else None


def unpacked(value: Any) -> Any:
    """The value of JSON in a text; other values unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        with contextlib.suppress(ValueError):
            return DECODER.decode(value)
    return value


def _turns(value: Any, names: str) -> Iterator[tuple[str, str]]:
    """Yield (role, text) of each message. The role of a text without one is empty."""
    parsed = unpacked(value)
    if isinstance(parsed, dict):
        message = {**parsed, **next(iter(listed(parsed.get("message") or parsed.get("kwargs"))), {})}
        path = message.get("id")
        kinds = (message.get("role"), message.get("type"), words_of(path) if isinstance(path, list) else None)
        role = next(filter(None, (_ROLE.fullmatch(kind.lower()) for kind in kinds if isinstance(kind, str))), None)
        if role is None:
            yield from _turns(next((parsed[name] for name in names.split() if parsed.get(name)), None), names)
            return
        content = next((message[name] for name in ("content", "parts", "text") if message.get(name)), None)
        parts = content if isinstance(content, list) else [content]
        said = [part for part in parts if not str(isinstance(part, dict) and part.get("type")).startswith(_OTHER_PARTS)]
        yield _ROLES.get(role[1], role[1]), words_of(said).strip()
    elif isinstance(parsed, list) and (parsed is value or any(isinstance(item, dict | list) for item in parsed)):
        for item in parsed:
            yield from _turns(item, names)
    elif isinstance(value, str):
        yield "", value.strip()

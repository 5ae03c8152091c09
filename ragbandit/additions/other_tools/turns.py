"""The turns of a chat in a field of another tool's log, whatever its form: the question, and the answer to it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ragbandit.additions.other_tools.forms import FORMS
from ragbandit.router.offline.logs import cells
from ragbandit.router.offline.logs.records import plain_name
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.reading.fields import flat_text, objects_in

#: fields with the time of a message, as plain names
_TIMES: Final = frozenset(FORMS["message_times"].split())
_WHO: Final = FORMS["who"].split()


def question_of(value: Any) -> tuple[str, int, str | None]:
    """Returns (last text of the user, its number among the user's texts, the assistant's text after it or None).

    The number is 0 if the user has no text, or if the last turn is a result of a tool or a user's turn without text.
    Raises InvalidInput if several texts have no role.
    """
    turns = [turn for turn in _turns(value, "asked") if turn[0] != "system"]
    if len([text for role, text in turns if not role and text]) > 1 and _is_message_list(value):
        remedy = "write them as messages with role: user or role: assistant, or name the columns question and answer"
        raise InvalidInput("the messages do not say who wrote them", remedy=remedy)
    asked = [at for at, (role, text) in enumerate(turns) if role in ("user", "") and text]
    if not asked:
        return "", 0, None
    is_step = turns[-1][0] == "tool" or turns[-1] == ("user", "")
    answers = [text for role, text in turns[asked[-1] + 1 :] if role == "assistant" and text]
    return turns[asked[-1]][1], 0 if is_step else len(asked), answers[-1] if answers else None


def answer_of(value: Any) -> str | None:
    """The last text of the assistant; None without one."""
    texts = [text for role, text in _turns(value, "answered") if role in ("assistant", "") and text]
    return texts[-1] if texts else None


def role_of(message: Mapping[str, Any]) -> str | None:
    """user, assistant, system or tool; None if the message does not say who wrote it."""
    for name in _WHO:
        who = message.get(name)
        who = who.get("role") if isinstance(who, dict) else who[-1:] if isinstance(who, list) else who
        if match := re.fullmatch(FORMS["role"], flat_text(who).strip().lower()):
            return str(FORMS["roles"].get(match[1], match[1]))
    by_user = next((message[name] for name in FORMS["by_user"] if isinstance(message.get(name), bool)), None)
    return None if by_user is None else "user" if by_user else "assistant"


def sort_by_time(messages: list[Any]) -> list[Any]:
    """The messages, the oldest first; in the given order if a message has no time."""
    times = []
    for message in messages:
        held = {plain_name(str(key)): part for key, part in message.items()} if isinstance(message, dict) else {}
        value = next((held[name] for name in _TIMES if held.get(name) is not None), None)
        try:
            times.append(float(value) if isinstance(value, int | float) else cells.seconds(value))
        except (ValueError, OverflowError):
            return messages
    return [
        message for _, _, message in sorted(zip(times, range(len(times)), messages, strict=True), key=lambda at: at[:2])
    ]


def _is_message_list(value: Any) -> bool:
    """Whether a value is or contains a list of messages. A list of objects with types is one message's parts."""
    value = cells.from_text(value)
    if isinstance(value, dict):
        held = filter(None, map(value.get, f"{FORMS['asked']} {FORMS['around']}".split()))
        return _is_message_list(next(held, None))
    return isinstance(value, list) and not all(isinstance(part, dict) and "type" in part for part in value)


def _turns(value: Any, names: str) -> Iterator[tuple[str, str]]:
    """Yield (role, text) of each message in a value: a list, an object, their JSON, or a plain text, whose role is "".

    names: key of forms.toml. It lists the fields in which an object without a role has its messages
    """
    parsed = cells.from_text(value)
    if isinstance(parsed, dict) and parsed and all(str(key).isdecimal() for key in parsed):
        parsed = [part for _, part in sorted(parsed.items(), key=lambda item: int(item[0]))]
    if isinstance(parsed, dict):
        yield from _turns_of_object(parsed, names)
    elif isinstance(parsed, list) and (
        not isinstance(value, str) or any(isinstance(item, dict | list) for item in parsed)
    ):
        for item in sort_by_time(parsed):
            yield from _turns(item, names)
    elif isinstance(parsed, str) and isinstance(value, str) and parsed != value:  # a text in quotes, as JSON writes it
        yield from _turns(parsed, names)
    elif isinstance(value, str):
        yield "", value.strip()


def _turns_of_object(parsed: Mapping[str, Any], names: str) -> Iterator[tuple[str, str]]:
    message = {str(key).removeprefix("message."): part for key, part in parsed.items()}  # as Phoenix writes it
    message |= next(iter(objects_in(parsed.get("message") or parsed.get("kwargs"))), {})
    role = role_of(message)
    if role is None:
        held = filter(None, map(parsed.get, f"{FORMS[names]} {FORMS['around']}".split()))
        yield from _turns(next(held, None), names)
        return
    content = next(filter(None, map(message.get, FORMS["contents"].split())), None)
    if isinstance(content, str) and content.lstrip()[:2] == "[{":  # parts of a message, as JSON in a text
        written = cells.from_text(content)
        content = written if all(isinstance(part, dict) and "type" in part for part in written) else content
    if isinstance(content, dict):
        content = content.get("parts") or content
    parts = [_without_prefix(part) for part in (content if isinstance(content, list) else [content])]
    types = [str(isinstance(part, dict) and part.get("type")) for part in parts]
    said = [part for part, kind in zip(parts, types, strict=True) if not re.match(FORMS["not_said"], kind)]
    yield role, flat_text(said).strip()


def _without_prefix(part: Any) -> Any:
    """The part without the prefix that OpenInference writes: message_content.text, or message_content: {text: ...}."""
    if not isinstance(part, dict):
        return part
    inner = part.get("message_content")
    if isinstance(inner, dict):
        return inner
    return {str(key).removeprefix("message_content."): value for key, value in part.items()}

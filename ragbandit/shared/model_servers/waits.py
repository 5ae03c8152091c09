"""How long a server asks its clients to wait: in headers, in fields of the error, or in words of documented forms."""

import email.utils
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from ragbandit.shared.reading.fields import finite_number

#: longest wait that a server may ask for, seconds
MAX_WAIT_S: Final = 3600.0
#: maximum number of values of a body that are read, levels of it, and characters of a text with JSON in it
_MOST: Final = 1_000
_DEEPEST: Final = 8
_LONGEST: Final = 100_000
#: headers with milliseconds: OpenAI, Azure
_MS_HEADERS: Final = ("retry-after-ms", "x-ms-retry-after-ms")
#: headers with the end of a limit: a duration such as "6m0s" (OpenAI, Groq, SambaNova) or seconds (Azure, Cerebras),
#: or a time in seconds (GitHub) or milliseconds (OpenRouter) since 1970
_RESET: Final = "x-ratelimit-reset"
#: fields of an error, in seconds unless they end with "ms". google.rpc.RetryInfo has a text such as "2.2s", or seconds
#: and nanos; Cloudflare has retry_after, OpenRouter headers. Hugging Face sends estimated_time while it loads a model
_FIELDS: Final = (
    *("retrydelay", "retry_delay", "retry_after", "retryafter", "retry_after_s", "retry_after_seconds", "retry-after"),
    *("retry_after_ms", "retryafterms", "resets_in_seconds", "resets_at", "estimated_time", _RESET),
)
_UNITS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_NUMBER: Final = r"\d{1,12}(?:\.\d{0,12})?"
_AMOUNT: Final = re.compile(rf"({_NUMBER})\s?(ms|milli|s|m|h|d)?[a-z]{{0,12}}\s?(?:,|and)?\s?", re.IGNORECASE)
#: "Please try again in 6m0s" (OpenAI, Groq), "Please retry in 2.2s" and "your quota will reset after 45s" (Gemini),
#: "retry after 26 seconds" and "retry your requests after 5 seconds" (Azure), "Please wait 20 seconds" (GitHub),
#: "resets in ~10s" (Replicate), "Expected available in 30 seconds" (services made with Django)
_WORDS: Final = re.compile(
    r"(?:(?:try|retry|retrying|resets?|available)\s(?:again\s|your\srequests?\s)?(?:in|after)|wait)\s"
    r"(?:about\s|for\s|~)?"
    rf"((?:{_NUMBER}\s?[a-z]{{0,12}}(?:,|\sand)?\s?){{1,4}})(?![-:/\d])",  # neither a date nor a time
    re.IGNORECASE,
)
#: words for a daily quota: Gemini writes them in these fields, GitHub and OpenRouter in the message
_PER_DAY: Final = re.compile(r"(?:per|by)_?day|free-models-per-day|limit_rpd/", re.IGNORECASE)
_QUOTA_NAMES: Final = ("quotaid", "quota_id", "quotametric", "quota_metric", "quota_limit")
#: words for a daily or monthly (Cohere) quota. They count only if no wait is named, since a part of OpenAI's daily
#: limits is free again soon
_DAILY: Final = re.compile(
    r"\b(?:requests|tokens|calls) (?:per|/) (?:day|month)\b|\bdaily (?:quota|limit|free allocation)\b", re.IGNORECASE
)


def asked_wait_s(*, headers: Mapping[str, str], body: object, message: str) -> float:
    """Seconds that a reply asks its client to wait, at most MAX_WAIT_S; 0 if it asks for none.

    headers: names in lower case. message: the error's text
    """
    asked = (
        *((finite_number(headers.get(name)) or 0.0) / 1e3 for name in _MS_HEADERS),
        retry_after_s(headers.get("retry-after")),
        *(_field_s(name, value) for name, value in _fields(body)),
        0.0 if (words := _WORDS.search(message)) is None else _amount_s(words[1]),
    )
    return min(next((seconds for seconds in asked if seconds > 0.0), 0.0), MAX_WAIT_S)


def is_daily_quota(body: object, *, message: str, after_s: float) -> bool:
    """Whether the quota of a day or a month is used up. Even then servers may name a short wait, `after_s`."""
    names = (value for name, value in _fields(body, names=_QUOTA_NAMES) if isinstance(value, str))
    return any(map(_PER_DAY.search, (*names, message))) or (not after_s and _DAILY.search(message) is not None)


def retry_after_s(header: str | None) -> float:
    """Parse a Retry-After header, a number or a date, to seconds from now; 0 if it is missing or cannot be read."""
    seconds = finite_number(header)
    if seconds is None:
        with suppress(ValueError, OverflowError):
            seconds = email.utils.parsedate_to_datetime(header or "").timestamp() - time.time()
    return max(0.0, seconds or 0.0)


def _field_s(name: str, value: Any) -> float:
    if isinstance(value, Mapping):  # a duration of protobuf
        return max(0.0, (finite_number(value.get("seconds")) or 0.0) + (finite_number(value.get("nanos")) or 0.0) / 1e9)
    is_ms = name.endswith("ms") and finite_number(value) is not None  # a text may name its unit
    return _until_s(value) / (1e3 if is_ms else 1.0)


def limits_end_s(headers: Mapping[str, str]) -> float:
    """Seconds until all used-up limits have ended, at most MAX_WAIT_S; 0 if no limit is used up.

    headers: headers of a refusal because of a limit; other replies may also have such headers
    """
    resets = (name for name in map(str.lower, headers) if name.startswith(_RESET))
    used = (name for name in resets if finite_number(headers.get(name.replace("reset", "remaining"))) == 0.0)
    return min(max((_until_s(headers[name]) for name in used), default=0.0), MAX_WAIT_S)


def _until_s(value: Any) -> float:
    """Seconds of a duration, or until a time since 1970, see `_RESET`; 0 for another value."""
    number = finite_number(value)
    if number is None:
        return _amount_s(value[:100]) if isinstance(value, str) and ":" not in value else 0.0
    ends = number / (1e3 if number > 1e11 else 1.0)
    return max(0.0, ends - time.time() if ends > 1e9 else ends)


def _amount_s(text: str) -> float:
    """Seconds of a text such as "2.2s", "1m30s" or "5 minutes"; 0 for another text."""
    seconds, at = 0.0, 0
    text = text.strip()
    while at < len(text) and (found := _AMOUNT.match(text, at)) is not None:
        unit = (found[2] or "s").lower()
        seconds += float(found[1]) * _UNITS["ms" if unit == "milli" else unit]
        at = found.end()
    return seconds


def _fields(body: object, *, names: tuple[str, ...] = _FIELDS) -> Iterator[tuple[str, Any]]:
    """(name in lower case, value) of the wanted fields of a body, and of errors nested in it or in its texts."""
    waiting: list[tuple[object, int]] = [(body, 0)]
    for _ in range(_MOST):
        if not waiting:
            return
        value, depth = waiting.pop()
        if isinstance(value, str) and value[:1] in "[{" and len(value) < _LONGEST:
            with suppress(ValueError, RecursionError):
                value = json.loads(value)
        if depth >= _DEEPEST:
            continue
        if isinstance(value, Mapping):
            for name, inner in [*value.items()][:_MOST]:
                if str(name).lower() in names:
                    yield str(name).lower(), inner
            waiting += [(inner, depth + 1) for inner in [*value.values()][:_MOST][::-1]]
        elif isinstance(value, list):
            waiting += [(inner, depth + 1) for inner in value[:_MOST][::-1]]

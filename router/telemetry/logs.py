"""Log lines: as text or as JSON, one for each record, without what looks like a secret, with the ids of what is done.

The ids of the request, the decision and the trace that a piece of code works for are bound to it; every line that it
writes has them.
"""

import json
import logging
import re
import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Literal

from ragbandit.shared.redaction import without_secrets

#: facts that every record has
_OF_RECORDS: Final = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message", "asctime"}
#: in a value it would end the fact, or the line
_SPACE: Final = re.compile(r"\s")
_bound: ContextVar[dict[str, str]] = ContextVar("ragbandit_log_ids", default={})  # noqa: B039 - replaced, never changed


@contextmanager
def bound(*, request: str | None = None, decision: str | None = None, trace: str | None = None) -> Iterator[None]:
    """Within the block every line of the log has these ids, beside those that are bound already."""
    given = {"request": request, "decision": decision, "trace": trace}
    token = _bound.set({**_bound.get(), **{name: value for name, value in given.items() if value is not None}})
    try:
        yield
    finally:
        _bound.reset(token)


class WithIds(logging.Filter):
    """Puts the bound ids on records that do not name them by themselves."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Every record passes."""
        for name, value in _bound.get().items():
            if name not in record.__dict__:
                setattr(record, name, value)
        return True


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _OF_RECORDS}


class TextLines(logging.Formatter):
    """time level logger: message, then action and the other facts as key=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        """The line and its traceback, without secrets: libraries repeat URLs and headers in their errors."""
        return without_secrets(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """The line without the traceback, which comes below it."""
        line = super().formatMessage(record)
        facts = " ".join(f"{k}={v!r}" if _SPACE.search(str(v)) else f"{k}={v}" for k, v in _facts(record).items())
        return f"{line} {facts}" if facts else line


class JsonLines(logging.Formatter):
    """One JSON object in one line: time, level, logger, message, then the facts; a traceback under `exception`."""

    def __init__(self) -> None:
        super().__init__()
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        """The line, without secrets."""
        at = f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z"
        line: dict[str, Any] = {
            "time": at,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        line |= {name: _plain(value) for name, value in _facts(record).items() if name not in line}
        if record.exc_info:
            line["exception"] = without_secrets(self.formatException(record.exc_info))
        elif record.exc_text:
            line["exception"] = without_secrets(record.exc_text)
        return json.dumps(line, ensure_ascii=True)


def _plain(value: object) -> object:
    """As JSON holds it; what is no number or truth value is a text without secrets."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0.0 else str(value)
    return without_secrets(str(value))


def set_up_log(level: str = "INFO") -> None:
    """Our log to standard error, as text until `log.format` is read; other libraries' from WARNING on."""
    handler = logging.StreamHandler()
    handler.setFormatter(TextLines())
    handler.addFilter(WithIds())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("ragbandit").setLevel(level)


def set_log_format(form: Literal["text", "json"]) -> None:
    """Write what is logged from now on in this form, to wherever it goes already."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, TextLines | JsonLines):
            handler.setFormatter(JsonLines() if form == "json" else TextLines())


class Throttle:
    """Lets one of each kind through every `every_s` seconds. Safe to use from several threads."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self._lock = threading.Lock()
        #: kind -> when one was let through last (time.monotonic)
        self._last: dict[Hashable, float] = {}

    def lets_pass(self, kind: Hashable = None) -> bool:
        """True for the first of its kind, and again when every_s have passed since the last one that passed.

        kind: of a small fixed set, since each one is kept.
        """
        with self._lock:
            now, last = time.monotonic(), self._last.get(kind)
            if last is not None and now < last + self.every_s:
                return False
            self._last[kind] = now
            return True

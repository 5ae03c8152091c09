"""Log lines as text or JSON, without secrets, with the ids of the request, decision and trace that they belong to."""

import json
import logging
import re
import threading
import time
from collections.abc import Hashable
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from typing import Any, Final, Literal

from ragbandit.shared.texts.redaction import without_secrets

_STANDARD_FIELDS: Final = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message", "asctime"}
#: values with white space are quoted, since a space ends a key=value pair, and a line break ends the line
_SPACE: Final = re.compile(r"\s")
_bound: ContextVar[dict[str, str]] = ContextVar("ragbandit_log_ids", default={})  # noqa: B039 - replaced, never changed


class log_fields(AbstractContextManager[None]):  # noqa: N801 - called like a function
    """Add these ids to all log lines written in the block."""

    __slots__ = ("_decision", "_request", "_token", "_trace")

    def __init__(self, *, request: str | None = None, decision: str | None = None, trace: str | None = None) -> None:
        self._request, self._decision, self._trace = request, decision, trace
        self._token: Token[dict[str, str]] | None = None

    def __enter__(self) -> None:
        ids = dict(_bound.get())
        if self._request is not None:
            ids["request"] = self._request
        if self._decision is not None:
            ids["decision"] = self._decision
        if self._trace is not None:
            ids["trace"] = self._trace
        self._token = _bound.set(ids)

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _bound.reset(self._token)


class WithIds(logging.Filter):
    """Adds the ids of `log_fields` to log records that lack them."""

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in _bound.get().items():
            if name not in record.__dict__:
                setattr(record, name, value)
        return True


def _extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}


class TextLines(logging.Formatter):
    """Format of one line: "time level logger: message key=value ..."."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """The line and its traceback, without secrets, since errors of libraries may contain URLs and headers."""
        return without_secrets(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        parts = [f"{record.asctime} {record.levelname} {record.name}: {record.message}"]
        for name, value in _extra_fields(record).items():
            parts.append(f"{name}={value!r}" if _SPACE.search(str(value)) else f"{name}={value}")
        return " ".join(parts)

    def usesTime(self) -> bool:  # noqa: N802 - logging's own name
        return True


class JsonLines(logging.Formatter):
    """Format of one JSON object per line: time, level, logger, message, further fields, and `exception`."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        at = f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z"
        line: dict[str, Any] = {
            "time": at,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        line |= {name: _json_value(value) for name, value in _extra_fields(record).items() if name not in line}
        if record.exc_info:
            line["exception"] = without_secrets(self.formatException(record.exc_info))
        elif record.exc_text:
            line["exception"] = without_secrets(record.exc_text)
        return json.dumps(line, ensure_ascii=True)


def _json_value(value: object) -> object:
    """Returns bools, None and finite numbers unchanged, everything else as text without secrets."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0.0 else str(value)
    return without_secrets(str(value))


def set_up_log(level: str = "WARNING") -> None:
    """Log to standard error, as text. A command that a person runs prints its progress, so it logs only warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(TextLines())
    handler.addFilter(WithIds())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("ragbandit").setLevel(level)


def set_service_log(form: Literal["text", "json"]) -> None:
    """Log a service's messages, from INFO on, in the format of the setting `log.format`."""
    logging.getLogger("ragbandit").setLevel("INFO")
    # No line names its file, thread or process, so logging need not find them (its documentation, "Optimization").
    logging._srcfile = None  # noqa: SLF001 - as documented
    logging.logThreads = logging.logMultiprocessing = logging.logProcesses = False
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, TextLines | JsonLines):
            handler.setFormatter(JsonLines() if form == "json" else TextLines())


class Throttle:
    """Limits events of each kind to one per `every_s` seconds. Thread-safe."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self._lock = threading.Lock()
        self._last: dict[Hashable, float] = {}

    def lets_pass(self, kind: Hashable = None) -> bool:
        """Whether an event may pass. kind: a name from a small fixed set, since all kinds are kept in memory."""
        with self._lock:
            now, last = time.monotonic(), self._last.get(kind)
            if last is not None and now < last + self.every_s:
                return False
            self._last[kind] = now
            return True

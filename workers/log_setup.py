"""Log set-up of the command and of worker processes: one line per record, without what looks like a secret."""

import logging
import time

from ragbandit.router.redaction import without_secrets

__all__ = ["set_up_log"]


class _Plain(logging.Formatter):
    """time level logger: message, then action and the other facts as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        """The line and its traceback, without secrets: libraries repeat URLs and headers in their errors."""
        return without_secrets(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """The line without the traceback, which comes below it."""
        line = super().formatMessage(record)
        known = logging.LogRecord("", 0, "", 0, "", (), None).__dict__.keys() | {"message", "asctime"}
        facts = " ".join(
            f"{k}={v!r}" if " " in str(v) else f"{k}={v}" for k, v in vars(record).items() if k not in known
        )
        return f"{line} {facts}" if facts else line


def set_up_log(level: str = "INFO") -> None:
    """Our log to standard error; other libraries' from WARNING on."""
    handler = logging.StreamHandler()
    formatter = _Plain("%(asctime)s %(levelname)s %(name)s: %(message)s")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("ragbandit").setLevel(level)

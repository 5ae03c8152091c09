"""Log set-up of the command and of worker processes: one line per record, without what looks like a secret."""

import logging

from ragbandit.router.telemetry.logs import TextLines, WithIds

__all__ = ["set_up_log"]


def set_up_log(level: str = "INFO") -> None:
    """Our log to standard error, as text until `log.format` is read; other libraries' from WARNING on."""
    handler = logging.StreamHandler()
    handler.setFormatter(TextLines())
    handler.addFilter(WithIds())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("ragbandit").setLevel(level)

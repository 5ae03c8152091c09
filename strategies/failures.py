"""Errors that end an arm or a call, and their texts and log lines without secrets."""

import asyncio
import logging
import traceback
from collections import Counter

from ragbandit.shared.errors import ArmFailed, RagBanditError
from ragbandit.shared.model_servers.failures import ServerFailed
from ragbandit.shared.texts.redaction import error_in_short, without_secrets

logger = logging.getLogger("ragbandit.arms")

#: maximum number of different exceptions that are counted
MOST_EXCEPTIONS = 1000
#: (the user's code, class of an exception, its "file:line") -> how often it was raised
_raised: Counter[tuple[str, str, str]] = Counter()


class OutOfBudget(Exception):
    """The run reached a cap of its budget. The runner turns this error into an outcome."""

    def __init__(self, cap: str) -> None:
        self.cap = cap
        super().__init__(f"the budget of {cap} ran out")


class PromptTooLong(ArmFailed):
    """The prompt does not fit the model, even without passages."""


class QuestionTooLong(PromptTooLong):
    """The prompt would fit without the question: the question is too long, not the arm's prompt."""


class RequestRefused(ServerFailed):
    """The server refused a chat that was forwarded unchanged, or the chat could not be fitted to the server. Other
    requests may succeed.
    """


class UnreadableReply(ServerFailed):
    """The reply exceeds a cap. It does not count against the arm, since other replies may be smaller."""


class AnswerBlocked(ArmFailed):
    """The server's content filter blocked the answer. Other requests may succeed."""


def error_text(error: BaseException) -> str:
    if isinstance(error, RagBanditError | OutOfBudget):
        return without_secrets(str(error))
    if isinstance(error, asyncio.CancelledError):
        return "cut off: the call did not return in time, or was cancelled"
    return error_in_short(error)


def _redact_traceback(record: logging.LogRecord) -> bool:
    """Replace the traceback with text without secrets, and remove the exception, which handlers would print."""
    if record.exc_info:
        record.exc_text = without_secrets(logging.Formatter().formatException(record.exc_info))
        record.exc_info = None
    return True


logger.addFilter(_redact_traceback)


def log_exception(error: BaseException, *, code: str, action: str, **facts: str) -> None:
    """Log an exception of the user's code `code`: its traceback once, then only the count at 2, 4, 8 ... times."""
    place = traceback.extract_tb(error.__traceback__, limit=-1)[-1]
    key = code, type(error).__qualname__, f"{place.filename}:{place.lineno}"
    if len(_raised) >= MOST_EXCEPTIONS:
        _raised.clear()
    _raised[key] += 1
    times = _raised[key]
    extra = {"action": action, "times": times, **facts}
    if times == 1:
        logger.error("%s raised an exception; its question fails", code, exc_info=error, extra=extra)
    elif times & (times - 1) == 0:
        logger.error("%s raised the same %s %d times", code, key[1], times, extra=extra)

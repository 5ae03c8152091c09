"""All errors that RagBandit raises deliberately.

The docstring of a class is its default message. `code` is stable, so clients may branch on it. `status` is the HTTP
status. `field` names the wrong input. `remedy` is what the user can do.
"""

import importlib
import importlib.util
from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar, Final

RESTORE: Final = "stop the service and restore a backup (docs/operations.md)"


def encodable(text: str) -> str:
    """Replace lone surrogates by ?. A text that comes from a caller's JSON may contain them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class RagBanditError(Exception):
    """RagBandit failed."""

    code: str = "INTERNAL"
    status: int = 500
    #: seconds after which another attempt may succeed; None if unknown
    retry_after_s: float | None = None
    #: whether messages may contain settings or URLs, so that secrets must be removed from them
    repeats: ClassVar[bool] = False

    def __init_subclass__(cls, **facts: str | int) -> None:
        """facts: any of `code`, `status` and `repeats`; the class inherits the others."""
        super().__init_subclass__()
        for name, fact in facts.items():
            setattr(cls, name, fact)

    def __init__(self, message: str = "", *, field: str | None = None, remedy: str | None = None) -> None:
        self.message = encodable(message or (type(self).__doc__ or "").strip())
        self.field = field and encodable(field)
        self.remedy = remedy and encodable(remedy)
        if self.repeats:
            # Imported here, since the patterns of the module compile slowly.
            from ragbandit.shared.texts.redaction import without_secrets

            self.message = without_secrets(self.message)
            self.field = self.field and without_secrets(self.field)
        super().__init__(self.message)

    def __str__(self) -> str:
        is_named = self.message.startswith(f'"{self.field}"')
        prefix = f"{self.field}: " if self.field and not is_named else ""
        suffix = f" ({self.remedy})" if self.remedy else ""
        return f"{prefix}{self.message}{suffix}"


class InvalidInput(RagBanditError, code="INVALID_INPUT", status=422):
    """The input cannot be used."""


class Unauthorized(RagBanditError, code="UNAUTHORIZED", status=401):
    """No valid API key was sent."""


class Forbidden(RagBanditError, code="FORBIDDEN", status=403):
    """This API key may not do this."""


class NotFound(RagBanditError, code="NOT_FOUND", status=404):
    """Nothing has this id, name or path."""


class Conflict(RagBanditError, code="CONFLICT", status=409):
    """The request contradicts what is stored: an id used with another body, a name that is taken, a changed state."""


class NotReady(RagBanditError, code="NOT_READY", status=503):
    """The service is not ready."""


class Overloaded(NotReady, code="OVERLOADED"):
    """Too much work is waiting; nothing was done."""

    def __init__(self, message: str = "", *, retry_after_s: float = 1.0, **details: str | None) -> None:
        super().__init__(message, **details)
        self.retry_after_s = retry_after_s


class TooManyRequests(Overloaded, code="TOO_MANY_REQUESTS", status=429):
    """This tenant has too much work waiting; nothing was done."""


class LimitReached(RagBanditError, code="LIMIT_REACHED", status=429):
    """The task or session has reached its limit; a later attempt would be refused too."""

    #: limits of the task and session: a SpendLimit, whose module imports this module, or JSON in the client
    limits: Sequence[Any] = ()


class ConfigError(RagBanditError, code="CONFIG_INVALID", repeats=True):
    """A setting is wrong."""


class StoreError(RagBanditError, code="STORE_UNAVAILABLE", status=503, repeats=True):
    """The database failed."""

    def __init__(self, message: str = "", *, lasting: bool = False, **details: str | None) -> None:
        super().__init__(message, **details)
        #: whether every further attempt would fail too, so that a process that fails at its start is not restarted
        self.lasting = lasting


class QueueError(RagBanditError, code="QUEUE_UNAVAILABLE", status=503, repeats=True):
    """The job queue cannot be reached."""


class SnapshotError(RagBanditError, code="SNAPSHOT_INVALID", repeats=True):
    """The snapshot cannot be used."""


class ArmFailed(RagBanditError, code="ARM_FAILED"):
    """The arm could not finish its answer."""


class PolicyFault(RagBanditError, code="POLICY_FAULT"):
    """The policy broke its contract."""


def root_cause(error: Exception) -> Exception:
    """The first error in nested exception groups."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def missing_package(name: str, *, extra: str, field: str | None = None, note: str | None = None) -> ConfigError:
    """The error about a missing package. name: package or a module in it. extra: the extra that installs it."""
    remedy = f"pip install '.[{extra}]' in a clone of the repository"
    if note:
        remedy += f"; {note}"
    return ConfigError(f"the package {name.partition('.')[0]} is missing", field=field, remedy=remedy)


#: module that is missing in a base installation -> extra that installs it
EXTRA_OF: Final = dict.fromkeys(
    (
        *("bm25s", "fastapi", "limits", "prometheus_client", "rapidfuzz", "redis", "rq", "starlette", "Stemmer"),
        *("swagger_ui_bundle", "uvicorn"),
    ),
    "service",
) | dict.fromkeys(("fsspec", "jinja2", "pyarrow"), "replay")


#: module that hatch_build.py writes; missing in a clone that was not installed
_WRITTEN: Final = "ragbandit.client.client"


def missing_module(error: ModuleNotFoundError) -> ConfigError | None:
    """The error about a missing module; None if no extra in EXTRA_OF installs it and no build writes it."""
    if error.name == _WRITTEN:
        remedy = "install the clone: `pip install .`, or run `make docs` in it"
        return ConfigError(f"the module {_WRITTEN}, which the build writes, is missing", remedy=remedy)
    name = (error.name or "").partition(".")[0]
    return missing_package(name, extra=EXTRA_OF[name]) if name in EXTRA_OF else None


def require_service() -> None:
    """Raises ConfigError if a package that services and workers need is missing. Imports nothing."""
    for name, extra in EXTRA_OF.items():
        if extra == "service" and importlib.util.find_spec(name) is None:
            raise missing_package(name, extra=extra)


def required_module(module: str, *, extra: str, field: str | None = None) -> ModuleType:
    """Import a module of an optional package. Raises ConfigError if the package is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_package(module, extra=extra, field=field) from error

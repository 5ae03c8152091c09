"""Every error RagBandit raises on purpose.

    RagBanditError
    |-- InvalidInput      422  a caller sent something that cannot be used
    |-- Unauthorized      401  no API key was sent, or one that is not valid
    |-- Forbidden         403  the API key may not do this, or the request came from another site
    |-- NotFound          404  nothing is known under that id
    |-- Conflict          409  the id was used before with another body
    |-- NotReady          503  a part is still starting, or a wait ran out
    |   `-- Overloaded        503  too much work is waiting: this was refused at once, and nothing was done
    |       `-- TooManyRequests   429  one tenant has too much work waiting
    |-- ConfigError       500  a setting is wrong: the process must not start
    |-- StoreError        503  the database failed or is of another version
    |-- QueueError        503  Redis cannot be reached
    |-- SnapshotError     500  a snapshot is broken or made for something else
    |-- ArmFailed         500  an arm, a retriever or a generator failed
    `-- PolicyFault       500  a policy broke its contract (the gate stops it)

The docstring of a class is its default message. `code` is stable and upper case: clients may branch on it.
`field` names the offending input, `remedy` says what to do about it. Errors of other libraries are wrapped at
the edges (store, jobs, generators, retrievers) with ``from``.
"""

import importlib
import importlib.util
from types import ModuleType
from typing import ClassVar, Final

#: why a store or an archive of version 0.x is refused
BEFORE_1_0: Final = "it was made before version 1.0, and the last commit that reads it is e8e4422 (last-0.x)"

#: what to do about a database that is damaged, empty or gone
RESTORE: Final = "stop the service and restore a backup (docs/operations.md)"


def encodable(text: str) -> str:
    """The text with ? for each lone surrogate: a message may repeat a caller, and JSON can carry such halves."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class RagBanditError(Exception):
    """RagBandit failed."""

    code: str = "INTERNAL"
    status: int = 500
    #: seconds after which it is worth another try; None: unknown
    retry_after_s: float | None = None
    #: the message may repeat a setting, or what a library says of a URL: secrets are removed from it
    repeats: ClassVar[bool] = False

    def __init__(self, message: str = "", *, field: str | None = None, remedy: str | None = None) -> None:
        self.message = encodable(message or (type(self).__doc__ or "").strip())
        self.field = field and encodable(field)
        self.remedy = remedy and encodable(remedy)
        if self.repeats:
            from ragbandit.shared.redaction import without_secrets  # its patterns take a while to compile

            self.message, self.field = without_secrets(self.message), self.field and without_secrets(self.field)
        super().__init__(self.message)

    def __str__(self) -> str:
        named = self.message.startswith(f'"{self.field}"')  # the message is a sentence about the field
        where = f"{self.field}: " if self.field and not named else ""
        cure = f" ({self.remedy})" if self.remedy else ""
        return f"{where}{self.message}{cure}"


class InvalidInput(RagBanditError):
    """The input cannot be used."""

    code = "INVALID_INPUT"
    status = 422


class Unauthorized(RagBanditError):
    """No valid API key was sent."""

    code = "UNAUTHORIZED"
    status = 401


class Forbidden(RagBanditError):
    """This API key may not do this."""

    code = "FORBIDDEN"
    status = 403


class NotFound(RagBanditError):
    """Nothing is known under this id."""

    code = "NOT_FOUND"
    status = 404


class Conflict(RagBanditError):
    """This id was used before with another body."""

    code = "CONFLICT"
    status = 409


class NotReady(RagBanditError):
    """The service is not ready."""

    code = "NOT_READY"
    status = 503


class Overloaded(NotReady):
    """Too much work is waiting; nothing was done."""

    code = "OVERLOADED"

    def __init__(
        self, message: str = "", *, field: str | None = None, remedy: str | None = None, retry_after_s: float = 1.0
    ) -> None:
        super().__init__(message, field=field, remedy=remedy)
        #: after which it is worth another try, seconds
        self.retry_after_s = retry_after_s


class TooManyRequests(Overloaded):
    """This tenant has too much work waiting; nothing was done."""

    code = "TOO_MANY_REQUESTS"
    status = 429


class ConfigError(RagBanditError):
    """A setting is wrong."""

    code = "CONFIG_INVALID"
    repeats = True


class StoreError(RagBanditError):
    """The database failed."""

    code = "STORE_UNAVAILABLE"
    repeats = True
    status = 503

    def __init__(
        self, message: str = "", *, field: str | None = None, remedy: str | None = None, lasting: bool = False
    ) -> None:
        super().__init__(message, field=field, remedy=remedy)
        #: no other try will succeed: a process that cannot start for it is not started again
        self.lasting = lasting


class QueueError(RagBanditError):
    """The job queue cannot be reached."""

    code = "QUEUE_UNAVAILABLE"
    repeats = True
    status = 503


class SnapshotError(RagBanditError):
    """The snapshot cannot be used."""

    code = "SNAPSHOT_INVALID"
    repeats = True


class ArmFailed(RagBanditError):
    """The arm could not finish its answer."""

    code = "ARM_FAILED"


class PolicyFault(RagBanditError):
    """The policy broke its contract."""

    code = "POLICY_FAULT"


def root_cause(error: Exception) -> Exception:
    """The first error in groups of errors; one that is no group itself."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def missing_package(name: str, *, extra: str, field: str | None = None, note: str | None = None) -> ConfigError:
    """The error of a package that is not installed, to be raised by the caller.

    name: of the package, or of a module in it. extra: the extra of ours that brings it. field: the setting that needs
    it. note: added to the remedy.
    """
    remedy = f"pip install '.[{extra}]' in a clone of the repository"
    if note:
        remedy += f"; {note}"
    return ConfigError(f"the package {name.partition('.')[0]} is missing", field=field, remedy=remedy)


#: modules that a base install does not have -> the extra that brings them; `service` includes `replay`
EXTRA_OF: Final = dict.fromkeys(
    (
        *("bm25s", "fastapi", "limits", "prometheus_client", "rapidfuzz", "redis", "rq", "starlette", "Stemmer"),
        *("swagger_ui_bundle", "uvicorn"),
    ),
    "service",
) | dict.fromkeys(("fsspec", "jinja2", "pyarrow"), "replay")


def missing_module(error: ModuleNotFoundError) -> ConfigError | None:
    """The error of a module that an extra brings, for one that was not found; None: no extra of EXTRA_OF brings it."""
    name = (error.name or "").partition(".")[0]
    return missing_package(name, extra=EXTRA_OF[name]) if name in EXTRA_OF else None


def require_service() -> None:
    """Refuse to start a service or a worker in a base install. Nothing is imported. Raises ConfigError."""
    for name, extra in EXTRA_OF.items():
        if extra == "service" and importlib.util.find_spec(name) is None:
            raise missing_package(name, extra=extra)


def required_module(module: str, *, extra: str, field: str | None = None) -> ModuleType:
    """The module of a package that an extra brings, imported. Raises ConfigError (see missing_package) without it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_package(module, extra=extra, field=field) from error

"""The reply of every error."""

from typing_extensions import TypedDict


class ErrorDetail(TypedDict):
    """What is wrong, and what to do."""

    code: str
    """Stable name of the kind of error."""
    message: str
    """What is wrong."""
    field: str | None
    """The input that is wrong; null if it is none."""
    remedy: str | None
    """What to do; null if nothing can be said."""


class ErrorReply(TypedDict):
    """Every error has this shape."""

    error: ErrorDetail
    """What is wrong, and what to do."""


# Every endpoint names it ten times: pydantic reads it when somebody asks for the OpenAPI document, not at each start.
ErrorReply.__pydantic_config__ = {"defer_build": True}  # type: ignore[attr-defined] # pydantic's own name

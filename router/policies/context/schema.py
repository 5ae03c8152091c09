"""The param `context` of a policy: the schema that it learns with, read from what it records."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from ragbandit.router.config.context_schema import ContextKey, ContextSchema, check_columns
from ragbandit.shared.errors import ConfigError

#: the param that holds the schema
PARAM: Final = "context"
_SCHEMA: Final = TypeAdapter(dict[str, ContextKey])


def read_schema(given: Mapping[str, Any] | None) -> ContextSchema:
    """The schema of these plain values; empty for none. Raises ConfigError with the key."""
    if not given:
        return {}
    try:
        schema = _SCHEMA.validate_python({key: _plain(one) for key, one in given.items()}, strict=True)
        check_columns(schema)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        raise ConfigError(message, field=f"context.{path}", remedy="docs/context.md describes a schema") from error
    except ValueError as error:
        raise ConfigError(str(error), field="context", remedy="docs/context.md describes a schema") from error
    return schema


def _plain(one: object) -> object:
    return one.model_dump(exclude_none=True) if isinstance(one, ContextKey) else one

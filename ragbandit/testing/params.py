"""Params that differ from the defaults, so that a contract is not checked with defaults only."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields, make_dataclass
from typing import Any, Final, get_type_hints

from pydantic import TypeAdapter

#: value of a number param whose default is 0 or None
_NUMBER: Final = 0.1


def other_params(kind: type[Any], *, example: Mapping[str, Any]) -> dict[str, Any]:
    """A value other than the default for each param of a dataclass, found by the param's type and range.

    example: values that take precedence. Params with texts, mappings or empty lists are left out unless they are in it.
    """
    hints = get_type_hints(kind, include_extras=True)
    found = {
        param.name: _other_value(param, hint=hints[param.name]) for param in fields(kind) if param.name not in example
    }
    return {name: value for name, value in found.items() if value is not None} | dict(example)


def params_class(arm: type[Any]) -> type[Any]:
    """The dataclass of an arm's params: its `kind`, or one made of the keyword parameters of its `__init__`."""
    if hasattr(arm, "kind"):
        kind: type[Any] = arm.kind
        return kind
    hints = get_type_hints(arm.__init__, include_extras=True)
    parameters = inspect.signature(arm.__init__).parameters.values()
    keywords = [one for one in parameters if one.kind is one.KEYWORD_ONLY and one.name != "name"]
    return make_dataclass("Params", [(one.name, hints[one.name], field(default=one.default)) for one in keywords])


def _other_value(param: "Field[Any]", *, hint: Any) -> Any:
    """Another choice, the other bool, the next integer, half of a number, or the list reversed; else None."""
    default: Any = param.default_factory() if param.default_factory is not MISSING else param.default
    schema = TypeAdapter(hint).json_schema()
    schema = next(option for option in schema.get("anyOf", [schema]) if option.get("type") != "null")
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    match schema.get("type"):
        case "boolean":
            return not default
        case "string" if "enum" in schema:
            return next(choice for choice in schema["enum"] if choice != default)
        case "integer":
            step = schema.get("multipleOf", 1)
            candidates = (default - step, default + step) if isinstance(default, int) else (low,)
            return next((value for value in candidates if low <= value <= high), None)
        case "number":
            return min(high, max(low, default / 2 if isinstance(default, float) and default else _NUMBER))
        case "array" if default:
            return default[::-1]
    return None

"""Strict YAML: refuses duplicate keys, recursive values and too many aliases. Numbers of JSON are read as numbers."""

import re
from itertools import chain
from typing import Any, Final

import yaml

#: maximum number of values in a YAML text; an alias counts as many values as it stands for
_MOST_VALUES: Final = 1_000_000
#: a number of JSON with an exponent; YAML 1.1 reads it as a text if it has no point or no sign (1e-05)
_JSON_NUMBER: Final = re.compile(r"\A-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?[eE][-+]?[0-9]+\Z")


class _StrictLoader(yaml.SafeLoader):
    """A SafeLoader that refuses duplicate keys, and aliases that stand for more than _MOST_VALUES values together."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.CollectionNode):
            parts = node.value if isinstance(node, yaml.SequenceNode) else chain.from_iterable(node.value)
            size = 1 + sum(getattr(part, "size", 1) for part in parts)
            if size > _MOST_VALUES:
                raise yaml.constructor.ConstructorError(None, None, "there are too many values", node.start_mark)
            node.size = size  # type: ignore[attr-defined] # read when the enclosing collection is counted
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is set twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
        """Construct a value. Raises ConstructorError for impossible dates (2026-13-45) and recursive values."""
        try:
            return super().construct_object(node, deep=deep or True)  # with deep=True recursive values raise
        except (ValueError, KeyError, AttributeError):
            raise yaml.constructor.ConstructorError(None, None, "the value is invalid", node.start_mark) from None


class _Dumper(yaml.SafeDumper):
    """A SafeDumper that quotes texts which `_StrictLoader` would read as numbers."""


for _kind in (_StrictLoader, _Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _JSON_NUMBER, list("-0123456789"))


def yaml_text(value: Any, **options: Any) -> str:
    """The value as YAML that `parse_yaml` reads as the same value, in the value's order.

    options: options of `yaml.dump`.
    """
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, **options))


def parse_yaml(text: str) -> Any:
    """Parse a YAML text. Raises ValueError with line and column, but without the text, which may contain a secret."""
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        fault = f"{error.problem or error.context or 'it is not YAML'}{where}"
    except (yaml.YAMLError, TypeError, RecursionError) as error:  # control characters, odd keys or recursive anchors
        fault = f"it is not YAML ({type(error).__name__})"
    raise ValueError(fault)

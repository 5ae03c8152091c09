"""Damaged records: what another program may write into a field instead of its value."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final

#: values that replace the value of a field in damaged records
DAMAGES: Final[tuple[Any, ...]] = (
    *(None, True, -1, 0.5, float("nan"), 10**400, "", "words", "\x00 \ud800 {", "[" * 5000),
    *([], [None], [[]], {}, {"": {}}, [{"x": 1}], ["words", 3]),
)
#: maximum number of damaged copies of a record, and maximum depth of a damaged field
_MOST_DAMAGED: Final = 3_000
_LEVELS: Final = 6


def damaged_records(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Copies of a record in which one field, also an inner one, is missing, null or of another type."""
    return islice(_damaged(record, levels=_LEVELS), _MOST_DAMAGED)


def _damaged(value: Any, *, levels: int) -> Iterator[Any]:
    """Copies of an object or a list with a damaged member."""
    members: Iterable[Any] = value.keys() if isinstance(value, Mapping) else range(len(value))
    for key in members:
        shorter: Any = dict(value) if isinstance(value, Mapping) else [*value]
        del shorter[key]
        yield shorter
        is_nested = levels and isinstance(value[key], Mapping | list)
        for member in chain(DAMAGES, _damaged(value[key], levels=levels - 1) if is_nested else ()):
            changed: Any = dict(value) if isinstance(value, Mapping) else [*value]
            changed[key] = member
            yield changed

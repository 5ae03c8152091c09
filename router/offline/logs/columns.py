"""Columns of Arrow as ours: what Arrow converts exactly as columns, every other type value by value (`values`)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute

from ragbandit.router.offline.logs import OURS, Defaults
from ragbandit.router.offline.logs.batches import COLUMNS, NUMBERS, PARTS, REWARD
from ragbandit.router.offline.logs.values import (
    KINDS,
    LATEST,
    PART_KINDS,
    converted,
    in_order,
    mapping,
    probabilities,
    reward,
    seconds,
    unknown_part,
)
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.plain_values import is_missing

#: names a row of a batch and a field of it, for messages
Named = Callable[[int, str], str]
#: columns that every log has; arms may follow from a pmf by arm
NEEDED: Final = ("id", "arms", "pmf", "arm", "reward")
#: columns of times
TIMES: Final = frozenset(name for name, kind in KINDS.items() if kind is seconds)
_TYPES = pa.types


def check_columns(schema: Any, columns: Sequence[str], *, place: str) -> None:
    """Raises InvalidInput for a column that is needed and missing, and for a name that stands twice.

    columns: those that are wanted; of ours only NEEDED must be there.
    """
    _check_names(schema, place=place)
    known = schema.names
    by_name = "pmf" in known and not _is_aligned(schema.field("pmf").type)
    for name in columns:
        if name in known or (name in OURS and name not in NEEDED) or (name == "arms" and by_name):
            continue
        remedy = f"log id, arms, pmf, arm and reward; the file has {', '.join(known)}"
        raise InvalidInput("there is no such column", field=f"{place} {name}", remedy=remedy)


def _check_names(fields: Any, *, place: str, path: str = "") -> None:
    names = [one.name for one in fields]
    for one in fields:
        if names.count(one.name) > 1:
            remedy = "name every column once: a join keeps the columns of both sides"
            raise InvalidInput("this column stands twice", field=f"{place} {path}{one.name}", remedy=remedy)
        if _TYPES.is_struct(one.type):
            _check_names(one.type, place=place, path=f"{path}{one.name}.")


def exact(column: Any, wanted: Any, *, is_time: bool = False) -> Any:
    """The column with the wanted type if Arrow converts it exactly, and without NaN if it is of numbers; else as it is.

    Text may stay dictionary-encoded, or large. is_time: it holds times, which become seconds since 1970.
    """
    written = column.type
    if not is_kind(written, wanted):
        if is_time and _TYPES.is_date(written):
            column = column.cast(pa.timestamp("ms"))
        if is_time and _TYPES.is_timestamp(column.type):
            column = compute.divide(column.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).cast(wanted), 1e6)
        elif _TYPES.is_null(written) or _converts(written, wanted):
            column = column.cast(pa.int8()) if _TYPES.is_boolean(written) else column
            column = column.cast(wanted, safe=False)  # whole numbers above 2^53 are rounded, as in JSON
    if wanted == pa.float64() and column.type == wanted and compute.any(compute.is_nan(column)).as_py():
        column = compute.if_else(compute.is_nan(column), None, column)
    return column


def is_kind(written: Any, wanted: Any) -> bool:
    """Whether a column of this type is read as one of another: text may be dictionary-encoded, or large."""
    written = written.value_type if _TYPES.is_dictionary(written) and wanted == pa.string() else written
    if _TYPES.is_list(written) and _TYPES.is_list(wanted):
        inner, text = written.value_type, wanted.value_type == pa.string()
        inner = inner.value_type if _TYPES.is_dictionary(inner) and text else inner
        return bool(inner == wanted.value_type or (text and _TYPES.is_large_string(inner)))
    return bool(written == wanted or (wanted == pa.string() and _TYPES.is_large_string(written)))


def _converts(written: Any, wanted: Any) -> bool:
    """Whether Arrow casts every value of the one type to the other, and means the same by it."""
    if _is_list(written) and _is_list(wanted):
        inner = written.value_type
        text = _TYPES.is_string(inner) or _TYPES.is_large_string(inner)
        return text if wanted.value_type == pa.string() else _is_amount(inner)
    if wanted == pa.float64():
        return _is_amount(written) or bool(_TYPES.is_boolean(written))
    if wanted == pa.string():
        return bool(_TYPES.is_integer(written))
    return bool(wanted == pa.int64() and _TYPES.is_signed_integer(written))


def _is_amount(kind: Any) -> bool:
    return bool(_TYPES.is_floating(kind) or _TYPES.is_integer(kind) or _TYPES.is_decimal(kind))


def _is_list(kind: Any) -> bool:
    return bool(_TYPES.is_list(kind) or _TYPES.is_large_list(kind) or _TYPES.is_fixed_size_list(kind))


def _is_aligned(kind: Any) -> bool:
    """Whether it holds lists of numbers in the order of the arms, not pairs of arm and number."""
    return _is_list(kind) and not _TYPES.is_nested(kind.value_type)


def column_of(column: Any, name: str, *, kind: Callable[[Any], Any], wanted: Any, named: Named) -> Any:
    """The column (or list) as one of ours. Raises InvalidInput with the row for a value that cannot be used."""
    column = column if isinstance(column, list) else exact(column, wanted, is_time=kind is seconds)
    if isinstance(column, list) or not is_kind(column.type, wanted):
        values = [
            None if is_missing(value) else converted(kind, value, field=named(row, name))
            for row, value in enumerate(column if isinstance(column, list) else column.to_pylist())
        ]
        if kind is mapping:
            values = [None if value is None else canonical(value) for value in values]
        return pa.array(values, wanted)
    if kind is seconds and len(wrong := np.flatnonzero(np.abs(column.to_numpy(zero_copy_only=False)) >= LATEST)):
        row = int(wrong[0])
        converted(seconds, column[row].as_py(), field=named(row, name))
    return column


def batch_of(batch: Any, *, defaults: Defaults, own: Sequence[str], named: Named) -> Any:
    """The batch with the types of COLUMNS and the rewards as structs of their parts. own: pmfs of candidates.

    Raises InvalidInput with row and field for a value that a field does not take.
    """
    batch = _aligned(batch, own=own, named=named)
    for at, name in enumerate(batch.schema.names):
        column = batch.column(at)
        if name == "reward":
            made = _rewards(column, defaults=defaults, named=named)
        else:
            kind, wanted = KINDS.get(name, probabilities), COLUMNS.get(name, NUMBERS)
            made = column_of(column, name, kind=kind, wanted=wanted, named=named)
        if made is not column:
            batch = batch.set_column(at, name, made)
    return batch


def _aligned(batch: Any, *, own: Sequence[str], named: Named) -> Any:
    """The batch with probabilities that stand by arm in the order of the arms, which may follow from the pmf."""
    names = batch.schema.names
    by_name = [name for name in ("pmf", *own) if name in names and not _is_aligned(batch.column(name).type)]
    if not by_name:
        return batch
    given = {
        name: [
            None if is_missing(value) else converted(probabilities, value, field=named(row, name))
            for row, value in enumerate(batch.column(name).to_pylist())
        ]
        for name in by_name
    }
    if "arms" not in names:
        arms = [list(one) if isinstance(one, Mapping) else None for one in given["pmf"]]
        batch = batch.append_column("arms", pa.array(arms, COLUMNS["arms"]))
    arms_column = column_of(batch.column("arms"), "arms", kind=KINDS["arms"], wanted=COLUMNS["arms"], named=named)
    for name in by_name:
        rows = enumerate(zip(given[name], arms_column.to_pylist(), strict=True))
        lists = [in_order(one, arms=arms or (), field=named(row, name)) for row, (one, arms) in rows]
        batch = batch.set_column(batch.schema.get_field_index(name), name, pa.array(lists, NUMBERS))
    return batch


def _rewards(column: Any, *, defaults: Defaults, named: Named) -> Any:
    """Rewards as a struct of their parts; parts that are left out are filled in as in a row of JSONL."""
    parts = _given_parts(exact(column, pa.float64()), named=named)
    for name in (*REWARD, "preset", "source"):
        parts.setdefault(name, pa.nulls(len(column), PARTS[name]))
    whole, fill = parts["quality"].is_null(), compute.coalesce
    parts["quality"], parts["cost"] = fill(parts["quality"], parts["value"]), fill(parts["cost"], 0.0)
    if parts["quality"].null_count:
        row = parts["quality"].is_null().index(True).as_py()
        raise InvalidInput("is missing", field=named(row, "reward"), remedy=f"a row needs {', '.join(NEEDED)}")
    parts["weight"] = fill(parts["weight"], compute.if_else(whole, 0.0, defaults.weight))
    parts |= {name: fill(parts[name], getattr(defaults, name)) for name in ("minimum", "maximum")}
    if parts["value"].null_count:
        earned = compute.subtract(parts["quality"], compute.multiply(parts["weight"], parts["cost"]))
        earned = compute.min_element_wise(compute.max_element_wise(earned, parts["minimum"]), parts["maximum"])
        parts["value"] = fill(parts["value"], earned)
    parts["preset"] = fill(parts["preset"], compute.if_else(whole, "reward", "quality"))
    parts["source"] = fill(parts["source"], "explicit")
    return pa.StructArray.from_arrays([*parts.values()], names=[*parts])


def _given_parts(column: Any, *, named: Named) -> dict[str, Any]:
    """The parts that the rewards have. Raises InvalidInput for a part that no reward has."""
    if column.type == pa.float64():
        return {"value": column}
    if _TYPES.is_struct(column.type):
        given: dict[str, Any] = dict(zip((part.name for part in column.type), column.flatten(), strict=True))
    else:
        rows = [
            {} if is_missing(value) else converted(reward, value, field=named(row, "reward"))
            for row, value in enumerate(column.to_pylist())
        ]
        given = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    parts: dict[str, Any] = {}
    for name, cells in given.items():
        known = name in PARTS
        made = column_of(
            cells,
            f"reward.{name}",
            kind=PART_KINDS[name] if known else unknown_part,
            wanted=PARTS[name] if known else pa.null(),
            named=named,
        )
        parts |= {name: made} if known else {}
    return parts

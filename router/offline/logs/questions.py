"""Labelled questions: files of one JSON object a line, which `simulate`, `train`, `warm` and `evaluate` read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ragbandit.router.serving.checks.fields import checked_text
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.files import lines, naming, parsed

Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledRow:
    """What every such line may say of its question; the rest of the line is the reader's."""

    #: by default "<kind>-<line>"
    id: str
    question: str
    #: where the question comes from
    dataset: str | None
    #: pieces of evidence that it needs
    hops: int | None


def question_rows(
    path: Path, make: Callable[[Mapping[str, Any], LabelledRow], Row], *, limit: int | None = None, kind: str = "row"
) -> list[Row]:
    """What `make` makes of each line, the first `limit` of them; it raises InvalidInput with the key as field.

    Raises InvalidInput with "<file>:<line> <key>" for a line that cannot be used, also for an id that stands twice.
    """
    rows: list[Row] = []
    line_of: dict[str, int] = {}
    for number, raw in lines(path):
        if limit is not None and len(rows) == limit:
            break
        with naming(path, line=number):
            entry = parsed(raw)
            labelled = _labelled(entry, default=f"{kind}-{number}")
            rows.append(make(entry, labelled))
            if labelled.id in line_of:
                message = f"{labelled.id!r} stands on line {line_of[labelled.id]} too"
                raise InvalidInput(message, field="id", remedy="give every question an id of its own")
        line_of[labelled.id] = number
    return rows


def required_text(entry: Mapping[str, Any], key: str, *, remedy: str) -> str:
    """A text that must be there, and that the service would take. Raises InvalidInput."""
    if entry.get(key) is None:
        raise InvalidInput("is missing", field=key, remedy=remedy)
    return checked_text(entry[key], field=key)


def _labelled(entry: Mapping[str, Any], *, default: str) -> LabelledRow:
    hops, names = entry.get("hops"), {"id": entry.get("id", default), "dataset": entry.get("dataset")}
    for key, value in names.items():
        if (value is not None or key == "id") and not (isinstance(value, str) and value.strip()):
            raise InvalidInput(f"{value!r} is no name", field=key, remedy="write text, or leave it out")
    if hops is not None and (isinstance(hops, bool) or not isinstance(hops, int) or hops < 0):
        raise InvalidInput(f"{hops!r} is no count", field="hops", remedy="write a whole number, or leave it out")
    question = required_text(entry, "question", remedy="every line has one, a text")
    return LabelledRow(id=names["id"], question=question, dataset=names["dataset"], hops=hops)

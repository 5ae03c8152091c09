"""Full-information routing tables: the result of every arm on every question, one JSON object a line.

    {"id": "q1", "question": "?", "correct": {"a": 0, "b": 1}, "steps": {"a": 0, "b": 2.5}, "dataset": "nq", "hops": 1,
     "context": {"tier": "pro"}}

`id`, `dataset`, `hops` and `context` may be left out; other keys are left alone. The first line says which arms there
are. `dataset` says where a question comes from, which no deployed router is told: it is kept apart from the rows, so
that no policy can reach it.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ragbandit.router.errors import InvalidInput
from ragbandit.router.offline.types import Matrix
from ragbandit.router.storage.files.json_lines import lines as read_lines
from ragbandit.router.storage.files.json_lines import naming, parsed
from ragbandit.router.types import ArmName, TableRow

__all__ = ["LabelledTable", "read_table"]


#: as the arms of a configuration are named: what is learned here can serve there
_ARM = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: limits of the service (ragbandit.router.serving.validation): steps of one answer, characters of one question
_MOST_STEPS = 1e9
_MOST_TEXT = 100_000


@dataclass(frozen=True, kw_only=True)
class LabelledTable:
    """The rows in the order of the file, with the arms in the order of its first line."""

    rows: tuple[TableRow, ...]
    arms: tuple[ArmName, ...]
    #: where each row's question comes from, None where the file does not say; for reports only
    datasets: tuple[str | None, ...]

    @cached_property
    def correct(self) -> Matrix:
        """Quality of every answer, shape (n, arms), in [0, 1]."""
        return np.array([[row.correct[arm] for arm in self.arms] for row in self.rows], dtype=np.float64)

    @cached_property
    def steps(self) -> Matrix:
        """Steps of every answer, shape (n, arms), >= 0."""
        return np.array([[row.steps[arm] for arm in self.arms] for row in self.rows], dtype=np.float64)


def read_table(path: str | Path) -> LabelledTable:
    """The table in this file.

    Raises InvalidInput with "<file>:<line> <key>" and a remedy for a file that cannot be read or has no row, and for
    a line that is no row: an arm missing or too much, a number that is none or out of range, an id used twice.
    """
    file = Path(path)
    rows: list[TableRow] = []
    datasets: list[str | None] = []
    arms: tuple[ArmName, ...] = ()
    lines: dict[str, int] = {}
    for number, raw in read_lines(file):
        line = _Line(file=file, number=number)
        with naming(file, line=number):
            found = parsed(raw)
        arms = arms or line.arms(found)
        row = line.row(found, arms=arms)
        if row.id in lines:
            raise line.wrong("id", f"{row.id!r} stands on line {lines[row.id]} too", "give every row an id of its own")
        lines[row.id] = number
        rows.append(row)
        datasets.append(line.dataset(found))
    return LabelledTable(rows=tuple(rows), arms=arms, datasets=tuple(datasets))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """Position in the file, for messages."""

    file: Path
    number: int

    def wrong(self, key: str, message: str, remedy: str) -> InvalidInput:
        """The error that names this place."""
        return InvalidInput(message, field=f"{self.file}:{self.number} {key}".rstrip(), remedy=remedy)

    def arms(self, found: Mapping[str, Any]) -> tuple[ArmName, ...]:
        """The arms of the table, from its first row."""
        arms = tuple(self._mapping(found, "correct"))
        if len(arms) < 2:
            raise self.wrong("correct", f"has {len(arms)} arms", "give at least two: there is nothing to route")
        for arm in arms:
            if not _ARM.fullmatch(arm):
                raise self.wrong(
                    "correct", f"{arm!r} is no name of an arm", "use 1 to 64 letters, digits, dots, dashes, underscores"
                )
        return tuple(ArmName(arm) for arm in arms)

    def row(self, found: Mapping[str, Any], *, arms: tuple[ArmName, ...]) -> TableRow:
        """The row on this line."""
        return TableRow(
            id=self._id(found),
            question=self._question(found),
            correct=self._amounts(found, "correct", arms=arms, most=1.0),
            steps=self._amounts(found, "steps", arms=arms, most=_MOST_STEPS),
            hops=self._hops(found),
            context=self._context(found),
        )

    def dataset(self, found: Mapping[str, Any]) -> str | None:
        """Dataset of the question."""
        value = found.get("dataset")
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self.wrong("dataset", f"{value!r} is no name", "write text, or leave it out")
        return value

    def _id(self, found: Mapping[str, Any]) -> str:
        value = found.get("id", f"row-{self.number}")
        if not isinstance(value, str) or not value.strip():
            raise self.wrong("id", f"{value!r} is no id", "write text, or leave it out")
        return value

    def _question(self, found: Mapping[str, Any]) -> str:
        value = found.get("question")
        if not isinstance(value, str) or not value.strip():
            raise self.wrong("question", "is missing or empty", "write the question as text")
        if len(value) > _MOST_TEXT:
            raise self.wrong("question", f"has {len(value)} characters", f"keep it under {_MOST_TEXT}")
        if "\x00" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise self.wrong("question", "holds a NUL or half a character", "remove it: the service refuses it too")
        return value

    def _hops(self, found: Mapping[str, Any]) -> int | None:
        value = found.get("hops")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise self.wrong("hops", f"{value!r} is no count", "write a whole number, or leave it out")
        return value

    def _context(self, found: Mapping[str, Any]) -> dict[str, Any]:
        value = found.get("context")
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.wrong("context", f"is a {type(value).__name__}", 'write {"key": value, ...}, or leave it out')
        for key, one in value.items():
            if isinstance(one, float) and not math.isfinite(one):
                raise self.wrong(f"context.{key}", "is not a finite number", "write null or leave it out")
        return dict(sorted(value.items()))

    def _mapping(self, found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = found.get(key)
        if not isinstance(value, dict):
            raise self.wrong(key, "is missing or no object", 'write {"arm": number, ...} over all arms')
        return value

    def _amounts(
        self, found: Mapping[str, Any], key: str, *, arms: tuple[ArmName, ...], most: float
    ) -> dict[ArmName, float]:
        given = self._mapping(found, key)
        for arm in arms:
            if arm not in given:
                raise self.wrong(f"{key}.{arm}", "is missing", f"every row needs every arm: {', '.join(arms)}")
        for name in given:
            if name not in arms:
                raise self.wrong(f"{key}.{name}", "is no arm of the first row", f"use the same arms: {', '.join(arms)}")
        return {arm: self._amount(given[arm], key=f"{key}.{arm}", most=most) for arm in arms}

    def _amount(self, value: object, *, key: str, most: float) -> float:
        whether = key.startswith("correct") and isinstance(value, bool)
        if not whether and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise self.wrong(key, f"{value!r} is no number", f"write a number in [0, {most:g}]")
        assert isinstance(value, int | float)
        if not (isinstance(value, int) or math.isfinite(value)):
            raise self.wrong(key, f"{value!r} is not finite", f"write a number in [0, {most:g}], or leave the row out")
        if not 0 <= value <= most:
            raise self.wrong(key, f"{value!r:.40} is out of range", f"write a number in [0, {most:g}]")
        return float(value)

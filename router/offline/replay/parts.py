"""Parts of a log: what the engine reads, one after the other or spread over workers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.logs.batches import BatchSpec, decoded, drawn
from ragbandit.router.offline.logs.sources import BATCH, LogSource
from ragbandit.router.offline.replay.candidates import CandidateSpec, array_pmf
from ragbandit.router.offline.replay.plan import Plan
from ragbandit.router.offline.types import Choices
from ragbandit.shared.types import ArmName

__all__ = ["LeftOut", "MemoryPart", "Part", "SourcePart"]


class Part(Protocol):
    """A log or a part of it, in its order, as often as it is asked for."""

    def batches(self, *, first_pass: bool) -> Iterator[Log]:
        """Some rows at a time, with what every candidate does on them; first_pass: with all that a summary reads."""
        ...

    def without_features(self) -> "Part":
        """The same, whose rows have no features."""
        ...

    @property
    def left_out(self) -> "LeftOut":
        """Rows that the last pass left out."""
        ...

    def names_of(self, key: np.uint64) -> list[str]:
        """The rows with this key of their id, in words."""
        ...


@dataclass(kw_only=True, slots=True)
class LeftOut:
    """Rows of a part that are not judged."""

    #: nobody drew their arm
    undrawn: int = 0
    #: with a time asked for: rows that have none, and older rows
    timeless: int = 0
    older: int = 0

    def merged(self, other: "LeftOut") -> "LeftOut":
        """Those of both."""
        return LeftOut(
            undrawn=self.undrawn + other.undrawn,
            timeless=self.timeless + other.timeless,
            older=self.older + other.older,
        )


@dataclass(kw_only=True, slots=True)
class MemoryPart:
    """The arrays of a whole log in memory, a batch at a time; they were checked when they were made."""

    log: Log
    left_out: LeftOut = field(default_factory=LeftOut, init=False)

    def batches(self, *, first_pass: bool) -> Iterator[Log]:  # noqa: ARG002 - an array costs nothing to read
        """As `Part` says."""
        for start in range(0, len(self.log), BATCH):
            yield self.log.part(np.arange(start, min(start + BATCH, len(self.log))))

    def without_features(self) -> "MemoryPart":
        """As `Part` says."""
        return MemoryPart(log=replace(self.log, features=None))

    def names_of(self, key: np.uint64) -> list[str]:
        """As `Part` says."""
        return [f"row {row + 1}" for row in np.flatnonzero(self.log.keys == key)]


@dataclass(kw_only=True, slots=True)
class SourcePart:
    """The rows of a source, for candidates that are arithmetic on arrays. It can be pickled where the source can."""

    source: LogSource
    candidates: Sequence[CandidateSpec]
    plan: Plan
    arms: tuple[ArmName, ...]
    mixed_arms: bool = False
    #: rows decided before are left out, seconds since the epoch
    since: float | None = None
    features: bool = True
    left_out: LeftOut = field(default_factory=LeftOut, init=False)

    def batches(self, *, first_pass: bool) -> Iterator[Log]:
        """As `Part` says. Raises InvalidInput for a row that cannot be true, UnevenFeatures where features are read."""
        self.left_out, spec = LeftOut(), self._spec(first_pass=first_pass)
        for rows, numbers in self._drawn(spec):
            log = self._log(rows, spec=spec, numbers=numbers)
            if self.since is not None:
                kept = log.made_at >= self.since
                self.left_out.timeless += int(np.count_nonzero(log.made_at == 0.0))
                self.left_out.older += int(np.count_nonzero(~kept))
                log = log.part(kept)
            if len(log):
                yield log

    def without_features(self) -> "SourcePart":
        """As `Part` says."""
        return replace(self, features=False)

    def names_of(self, key: np.uint64) -> list[str]:
        """As `Part` says; reads the source again."""
        spec = replace(self._spec(first_pass=False), fields=(), own=(), features=False)
        found: list[str] = []
        for rows, numbers in self._drawn(spec):
            log = decoded(rows, spec=spec, named=partial(self._row_name, rows, numbers))
            found += [self._row_name(rows, numbers, int(row)) for row in np.flatnonzero(log.keys == key)]
        return found

    def _drawn(self, spec: BatchSpec) -> Iterator[tuple[Any, Choices]]:
        """Record batches of the rows that were drawn, and the rows' numbers from 1."""
        before = 0
        for batch in self.source.batches(spec):
            here = drawn(batch)
            numbers = before + 1 + np.flatnonzero(here)
            before += batch.num_rows
            self.left_out.undrawn += batch.num_rows - len(numbers)
            if len(numbers):
                yield batch if here.all() else batch.filter(pa.array(here)), numbers

    def _row_name(self, rows: Any, numbers: Choices, row: int) -> str:
        return self.source.row_name(int(numbers[row]), rows.column("id")[row].as_py())

    def _spec(self, *, first_pass: bool) -> BatchSpec:
        fields = ["version", *self.plan.segments] if first_pass else self.plan.segments
        return BatchSpec(
            arms=self.arms,
            mixed_arms=self.mixed_arms,
            fields=tuple(dict.fromkeys(fields)),
            own=tuple(spec.what for spec in self.candidates if spec.kind == "column"),
            features=self.features and self.plan.reward_model != "mean",
            late=first_pass,
        )

    def _log(self, rows: Any, *, spec: BatchSpec, numbers: Choices) -> Log:
        named = partial(self._row_name, rows, numbers)
        log = decoded(rows, spec=spec, named=named)
        if self.plan.weight is not None:
            log = log.weighted(self.plan.weight)
        pmfs = [array_pmf(candidate, log=log, named=named) for candidate in self.candidates]
        return replace(log, candidates=tuple(pmfs))

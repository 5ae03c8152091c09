"""Parts of a log: what the engine reads, one after the other, or spread over the workers of an executor: a pool of
processes here, or Dask's on many machines.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.logs.batches import BatchSpec, check_choice, decoded, drawn, offered_arms
from ragbandit.router.offline.logs.sources import BATCH, LogSource
from ragbandit.router.offline.replay.candidates import array_pmf
from ragbandit.router.offline.replay.plan import CandidateSpec, Plan
from ragbandit.router.offline.types import Choices
from ragbandit.shared.types import ArmName

Job = TypeVar("Job")
Result = TypeVar("Result")

#: parts that are under way, or done and not merged yet, at most
IN_FLIGHT: Final = 64
#: bytes of arrays that are kept from one pass to the next, of all parts
KEPT_BYTES: Final = 1 << 28
#: a cluster without any worker is waited for that long, and looked at so often, seconds
PATIENCE_S: Final = 30.0
LOOK_S: Final = 2.0


class LogPart(Protocol):
    """A log or a part of it, in its order, as often as it is asked for."""

    def batches(self) -> Iterator[Log]:
        """Some rows at a time, with what every candidate does on them."""
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

    def __add__(self, other: "LeftOut") -> "LeftOut":
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

    def batches(self) -> Iterator[Log]:
        """As `LogPart` says."""
        for start in range(0, len(self.log), BATCH):
            yield self.log.part(slice(start, start + BATCH))

    def names_of(self, key: np.uint64) -> list[str]:
        """As `LogPart` says."""
        return [f"row {row + 1}" for row in np.flatnonzero(self.log.keys == key)]


@dataclass(kw_only=True, slots=True)
class Room:
    """Bytes that parts may still keep from one pass to the next."""

    free: int


@dataclass(kw_only=True, slots=True)
class KeptPart:
    """A part whose arrays stay in memory after the first pass where there is room for them: it is read once."""

    part: LogPart
    room: Room
    _kept: list[Log] | None = field(default=None, init=False)

    def batches(self) -> Iterator[Log]:
        """As `LogPart` says."""
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[Log] = []
        used = 0
        for log in self.part.batches():
            used += log.nbytes
            if used <= self.room.free:
                kept.append(log)
            else:
                kept.clear()
            yield log
        if used <= self.room.free:
            self._kept, self.room.free = kept, self.room.free - used

    @property
    def left_out(self) -> LeftOut:
        """As `LogPart` says."""
        return self.part.left_out

    def names_of(self, key: np.uint64) -> list[str]:
        """As `LogPart` says."""
        return self.part.names_of(key)


@dataclass(kw_only=True, slots=True)
class SourcePart:
    """The rows of a source, for candidates that are arithmetic on arrays. It can be pickled where the source can."""

    source: LogSource
    candidates: Sequence[CandidateSpec]
    plan: Plan
    #: (): those of the first row that was drawn
    arms: tuple[ArmName, ...]
    mixed_arms: bool = False
    #: rows decided before are left out, seconds since the epoch
    since: float | None = None
    left_out: LeftOut = field(default_factory=LeftOut, init=False)

    def batches(self) -> Iterator[Log]:
        """As `LogPart` says. Raises InvalidInput for a row that cannot be true."""
        self.left_out = LeftOut()
        for rows, numbers in self._drawn(self._spec()):
            log = self._log(rows, spec=self._spec(), numbers=numbers)
            if self.since is not None:
                recent = log.made_at >= self.since
                self.left_out.timeless += int(np.count_nonzero(log.made_at == 0.0))
                self.left_out.older += int(np.count_nonzero(~recent))
                log = log.part(recent)
            if len(log):
                yield log

    def names_of(self, key: np.uint64) -> list[str]:
        """As `LogPart` says; reads the source again."""
        spec = replace(self._spec(), fields=(), own=(), features=False)
        names: list[str] = []
        for rows, numbers in self._drawn(spec):
            log = decoded(rows, spec=spec, named=partial(self._row_name, rows, numbers))
            names += [self._row_name(rows, numbers, int(row)) for row in np.flatnonzero(log.keys == key)]
        return names

    def _drawn(self, spec: BatchSpec) -> Iterator[tuple[Any, Choices]]:
        """Record batches of the rows that were drawn, and the rows' numbers from 1."""
        before = 0
        for batch in self.source.batches(spec):
            here = drawn(batch)
            numbers = before + 1 + np.flatnonzero(here)
            before += batch.num_rows
            self.left_out.undrawn += batch.num_rows - len(numbers)
            if len(numbers):
                rows = batch if here.all() else batch.filter(pa.array(here))
                if not self.arms:
                    self.arms = tuple(offered_arms(rows.slice(0, 1)))
                    check_choice(self.arms)
                yield rows, numbers

    def _row_name(self, rows: Any, numbers: Choices, row: int) -> str:
        return self.source.row_name(int(numbers[row]), rows.column("id")[row].as_py())

    def _spec(self) -> BatchSpec:
        return BatchSpec(
            arms=self.arms,
            mixed_arms=self.mixed_arms,
            fields=tuple(dict.fromkeys(["version", *self.plan.segments])),
            own=tuple(spec.what for spec in self.candidates if spec.kind == "column"),
            features=self.plan.reward_model != "mean",
        )

    def _log(self, rows: Any, *, spec: BatchSpec, numbers: Choices) -> Log:
        named = partial(self._row_name, rows, numbers)
        log = decoded(rows, spec=spec, named=named)
        log = self.plan.read_at_weight(log)
        pmfs = [array_pmf(candidate, log=log, named=named) for candidate in self.candidates]
        return replace(log, candidates=tuple(pmfs))

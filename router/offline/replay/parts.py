"""The parts of a log, which are read in batches; which rows are judged, and which are left out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from ragbandit.router.offline.estimation import Tally
from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.logs.batches import BatchSpec, LogSource, decode_batch, drawn_flags, select_rows, times_of
from ragbandit.router.offline.logs.parquet import BATCH
from ragbandit.router.offline.replay.plan import Plan
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.formats import moment
from ragbandit.shared.types import Flags

#: the first exploration is searched for in this number of first rows
EARLIEST: Final = 100_000


@dataclass(kw_only=True, slots=True)
class LeftOut(Tally):
    undrawn: int = 0  #: rows whose arm was not drawn
    timeless: int = 0  #: rows without a time, counted if `since` is set
    older: int = 0  #: rows decided before `since`
    early: int = 0  #: rows before the first exploration


def usable_draws(batch: Any, *, since: float | None, left_out: LeftOut) -> Flags:
    """Flags of the drawn rows of a batch that were decided since `since`. Counts the others in `left_out`."""
    was_drawn = drawn_flags(batch)
    left_out.undrawn += int(np.count_nonzero(~was_drawn))
    if since is None:
        return was_drawn
    times = times_of(batch)
    recent = times >= since
    left_out.timeless += int(np.count_nonzero(was_drawn & (times == 0.0)))
    left_out.older += int(np.count_nonzero(was_drawn & ~recent))
    return was_drawn & recent


class Part(Protocol):
    """A log, or a file of it, as columns. An executor may send a part to another process."""

    @property
    def place(self) -> str:
        """Prefix of a row's name in messages."""

    def batches(self, left_out: LeftOut) -> Iterator[Log]:
        """Yield the judged rows, in the same order each time. left_out: counts the other rows. Raises InvalidInput."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPart:
    """Rows in memory."""

    log: Log
    undrawn: int = 0  #: rows that are not in `log`, since their arm was not drawn

    @property
    def place(self) -> str:
        return "row"

    def batches(self, left_out: LeftOut) -> Iterator[Log]:
        left_out.undrawn += self.undrawn
        for start in range(0, len(self.log), BATCH):
            yield self.log.part(slice(start, start + BATCH))


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcePart:
    """A file, or the ledger of the store."""

    source: LogSource
    spec: BatchSpec
    plan: Plan
    #: decisions made before this time are not judged, seconds since the epoch; None to judge all
    since: float | None = None

    @property
    def place(self) -> str:
        return self.source.place

    def batches(self, left_out: LeftOut) -> Iterator[Log]:
        for batch in self.source.batches(self.spec.columns):
            rows = select_rows(batch, usable_draws(batch, since=self.since, left_out=left_out))
            if rows.num_rows:
                yield self.plan.read_at_weight(decode_batch(rows, spec=self.spec, place=self.place))


@dataclass(frozen=True, kw_only=True, slots=True)
class StartedPart:
    """A part without its first rows, which precede the first exploration."""

    part: Part
    early: Mapping[bool, int]  #: imported rows (True) and decisions of the service (False) -> number of first rows

    @property
    def place(self) -> str:
        return self.part.place

    def batches(self, left_out: LeftOut) -> Iterator[Log]:
        early = dict(self.early)
        for log in self.part.batches(left_out):
            flags, leave = import_flags(log), np.zeros(len(log), dtype=np.bool_)
            for kind, count in early.items():
                first = np.flatnonzero(flags == kind)[:count]
                leave[first], early[kind] = True, count - len(first)
            left_out.early += int(leave.sum())
            log = log.part(~leave) if leave.any() else log
            if len(log):
                yield log


@dataclass(kw_only=True, slots=True)
class CachedPart:
    """A part whose batches stay in memory after they were read once, if they have at most `most_bytes`."""

    part: Part
    most_bytes: int
    cached: list[Log] | None = None

    @property
    def place(self) -> str:
        return self.part.place

    def batches(self, left_out: LeftOut) -> Iterator[Log]:
        if self.cached is not None:
            yield from self.cached
            return
        logs, used = list[Log](), 0
        for log in self.part.batches(left_out):
            used += log.nbytes
            logs = [*logs, log] if used <= self.most_bytes else []
            yield log
        self.cached = logs if used <= self.most_bytes else None


def names_of_rows(part: Part, *, key: np.uint64) -> list[str]:
    """Names of the rows whose id has this hash, for messages."""
    logs = part.batches(LeftOut())
    lines = [log.lines[log.keys == key] for log in logs if log.lines is not None]
    return [f"{part.place} {line}" for line in np.concatenate(lines)] if lines else ["a row in memory"] * 2


def import_flags(log: Log) -> Flags:
    """Flags of rows: True if the row was imported, shape (n,)."""
    return np.zeros(len(log), dtype=np.bool_) if log.imported is None else log.imported


def by_origin(log: Log) -> Iterator[tuple[bool, Log]]:
    """Yield (False, decisions of the service) and (True, imported rows). A group without rows is left out."""
    flags = import_flags(log)
    for kind in (False, True):
        if flags.any() if kind else not flags.all():
            yield kind, log if flags.all() == flags.any() else log.part(flags == kind)


def without_certain_start(parts: Sequence[Part]) -> list[Part]:
    """The parts without the rows before the first exploration of the log: until then the same arm was always certain.

    Imported rows (True) and decisions of the service (False) are counted apart. No row is left out if none explores, or
    if more than EARLIEST rows precede the first exploration.
    """
    counts = [{False: 0, True: 0} for _ in parts]
    first_arm, waiting, rows = dict[bool, int](), set[bool](), 0
    explored = set[bool]()
    for of_part, part in zip(counts, parts, strict=True):
        for log in part.batches(LeftOut()):
            for kind, own in by_origin(log):
                if kind in explored:
                    continue
                waiting.add(kind)
                arm = first_arm.setdefault(kind, int(own.action[0]))
                explores = (np.count_nonzero(own.pmf, axis=1) > 1) | (own.action != arm)
                of_part[kind] += int(np.argmax(explores)) if explores.any() else len(own)
                if explores.any():
                    explored.add(kind)
            rows += len(log)
            if waiting <= explored or rows > EARLIEST:
                break
        if waiting and (waiting <= explored or rows > EARLIEST):
            break
    early = [{kind: count for kind, count in of_part.items() if kind in explored} for of_part in counts]
    return [StartedPart(part=part, early=of_part) for part, of_part in zip(parts, early, strict=True)]


def check_times(*, kept: int, older: int, timeless: int, since: float | None, log: str) -> None:
    """Raise InvalidInput if `since` is set, and rows have no time or all are older. kept: rows decided since then."""
    if timeless:
        message, remedy = f"{timeless} of {kept + older} rows have no made_at", "log the times, or leave out --since"
        raise InvalidInput(message, field=f"{log} since", remedy=remedy)
    if older and not kept and since is not None:
        message = f"has no rows decided since {moment(since)}: all {older} are older"
        raise InvalidInput(message, field=log, remedy="give an earlier --since")

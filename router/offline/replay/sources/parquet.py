"""A Parquet log that need not fit in memory, read anew for every pass, for candidates that are arithmetic on arrays."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import numpy as np

from ragbandit.router.errors import InvalidInput
from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.logs.parquet import opened
from ragbandit.router.offline.logs.parquet_arrays import LogOverview, read_log_with
from ragbandit.router.offline.logs.place import Place
from ragbandit.router.offline.logs.records import Defaults
from ragbandit.router.offline.replay.candidates import CandidateSpec, array_pmf
from ragbandit.router.offline.replay.plan import Plan
from ragbandit.router.offline.replay.sources.pieces import PIECE, UNMIXED, Piece, check_choice
from ragbandit.router.offline.types import Keys

__all__ = ["ParquetPieces", "can_stream", "check_once", "encoders_of"]

Item = TypeVar("Item")

#: fields that are columns of their own; others are keys of the context
_COLUMNS = ("tenant", "version", "policy")


@dataclass(kw_only=True)
class ParquetPieces:
    """Pieces of a file, `Pieces` to the judge; every row is checked in the first pass."""

    path: Place
    candidates: Sequence[CandidateSpec]
    plan: Plan
    defaults: Defaults
    #: rows may offer different arms
    mixed_arms: bool = False
    #: rows decided before are left out, seconds since the epoch
    since: float | None = None
    #: of a file that is one of several; None: it is the whole log
    overview: LogOverview | None = None
    #: read the features; None: where the file has them in every row, by one encoder
    features: bool | None = None
    #: of the ids, after the first pass
    keys: list[Keys] = field(default_factory=list, init=False)
    _checked: bool = field(default=False, init=False)

    def __iter__(self) -> Iterator[Piece]:
        # Reading and arithmetic take about as long, and both leave the interpreter: a thread reads one piece ahead.
        return ahead(self._pieces())

    def _pieces(self) -> Iterator[Piece]:
        names = {name if name in _COLUMNS else f"context.{name}": name for name in self.plan.segments}
        if "version" in _columns(self.path):
            names |= {"version": "version"}
        featured = self.features
        if featured is None:
            featured = self.plan.reward_model != "mean" and bool(encoders_of(self.path))
        wanted = [*names, "features"] if featured else list(names)
        own = [spec.what for spec in self.candidates if spec.kind == "column"]
        first, keys = 1, list[Keys]()
        pieces = read_log_with(
            self.path,
            candidates=own,
            columns=wanted,
            batch_rows=PIECE,
            defaults=self.defaults,
            overview=self.overview,
        )
        for log, columns in pieces:
            fields = {names[column]: values for column, values in log.fields.items()}
            log = replace(log, fields=fields)
            if not self._checked:
                log.check(first=first)
                self._check_arms(log, first=first)
                keys.append(log.keys)
            if self.plan.weight is not None:
                log = log.weighted(self.plan.weight)
            pmfs = [array_pmf(spec, log=log, columns=columns, first=first) for spec in self.candidates]
            first += len(log)
            if self.since is not None:
                if not log.made_at.all():
                    remedy = "log the times, or leave out --since"
                    raise InvalidInput("has rows without made_at", field=f"{self.path} since", remedy=remedy)
                kept = log.made_at >= self.since
                log, pmfs = log.part(kept), [pmf[kept] for pmf in pmfs]
            if len(log):
                yield Piece(log=log, candidates=pmfs)
        if not self._checked and keys:
            check_once(np.concatenate(keys), path=self.path)
            self.keys = keys
        self._checked = True

    def _check_arms(self, log: Log, *, first: int) -> None:
        """Raises InvalidInput for one arm, and for mixed ones where they are not allowed."""
        check_choice(log.arms)
        fewer = np.flatnonzero(~log.offered.all(axis=1))
        if len(fewer) and not self.mixed_arms:
            row = int(fewer[0])
            offered = [arm for arm, there in zip(log.arms, log.offered[row], strict=True) if there]
            raise InvalidInput(
                f"offers {', '.join(offered)}; the log knows {', '.join(log.arms)}",
                field=f"row {first + row} arms",
                remedy=UNMIXED,
            )


def check_once(keys: Keys, *, path: Place) -> None:
    """Raises InvalidInput for an id that stands in two rows: its decision would count twice."""
    ordered = np.sort(keys)
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(again):
        first, second = np.flatnonzero(keys == ordered[again[0]])[:2] + 1
        raise InvalidInput(
            f"has the id of row {first}; {len(again)} rows repeat an id",
            field=f"{path} row {second} id",
            remedy="log every decision once",
        )


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items, the next one being made in a thread while the last one is used."""
    end = object()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead") as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield cast(Item, item)


def can_stream(path: Place, *, candidates: Sequence[CandidateSpec]) -> bool:
    """True if this Parquet file has all that the candidates need in columns of its own."""
    columns = _columns(path)
    return all(not spec.needs_rows and (spec.kind != "column" or spec.what in columns) for spec in candidates)


def _columns(path: Place) -> tuple[str, ...]:
    with opened(path) as file:
        return tuple(file.schema_arrow.names)


def encoders_of(path: Place) -> tuple[str, ...]:
    """The encoder of all rows' features, by the file's own statistics; () where rows have none, or of several.

    ("",) of a file that does not name encoders.
    """
    with opened(path) as file:
        if "features" not in file.schema_arrow.names:
            return ()
        schema, groups = file.schema, [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        places = {schema.column(i).path.split(".")[0]: i for i in range(len(schema))}
        numbers = [group.column(places["features"]).statistics for group in groups]
        hashes = [group.column(places["encoder_hash"]).statistics for group in groups if "encoder_hash" in places]
        found = {end for each in hashes if each and each.has_min_max for end in (each.min, each.max)}
        if len(found) > 1 or not all(each and each.null_count == 0 for each in numbers):
            return ()
        return tuple(found) or ("",)

"""Logs for a replay: a file, several files or the ledger of the store, read in batches or into memory."""

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path

from ragbandit.router.config.loading import load as load_settings
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.estimation import Progress, no_progress
from ragbandit.router.offline.logs import (
    BadRow,
    Defaults,
    Logged,
    Place,
    files_of,
    form_of,
    is_several,
    place_of,
    reward_defaults,
    shown,
    usable_rows,
    with_progress,
)
from ragbandit.router.offline.logs.batches import LogSource, arms_of, check_choice
from ragbandit.router.offline.logs.jsonl import read_rows
from ragbandit.router.offline.logs.ledger_source import LedgerSource
from ragbandit.router.offline.logs.ledger_transfer import ledger_rows
from ragbandit.router.offline.logs.parquet import ParquetSource, RowsSource
from ragbandit.router.offline.replay.candidates import MemoryLog, memory_log
from ragbandit.router.offline.replay.plan import LoggedPolicies, instant
from ragbandit.router.offline.replay.prepare import logged_policies, serving_settings
from ragbandit.router.offline.replay.sums import check_times
from ragbandit.router.serving.setup.bootstrap import ledger_of
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName


def open_log(
    path: str | Path | None = None,
    *,
    config: str | Path | Settings | None = None,
    label: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    since: float | None = None,
    mixed_arms: bool = False,
    skip_bad: bool = False,
) -> "OpenLog":
    """Open a log for `replay`. Only the configuration is read now.

    path: a file in any form of `records`, a folder of Parquet files, a pattern with *, or a URL of fsspec for Parquet;
    None for the ledger `label` of the configured store.
    config: a file, Settings, or None for ./config.yaml and the environment.
    label: default policy.label.
    minimum, maximum: bounds of rewards that are logged without bounds; default reward.minimum and reward.maximum.
    since: decisions made before this time are not read, seconds since the epoch; None to read all.
    mixed_arms: True accepts rows that offer different arms.
    skip_bad: True leaves out and counts unusable rows; False refuses the log.
    Raises InvalidInput if the bounds are not finite or minimum is not below maximum; ConfigError for a wrong setting.
    """
    settings = config if isinstance(config, Settings) else load_settings(config).settings
    return OpenLog(
        path=None if path is None else place_of(path),
        settings=settings,
        label=label or settings.policy.label,
        defaults=reward_defaults(settings.reward, minimum=minimum, maximum=maximum),
        since=since,
        mixed_arms=mixed_arms,
        skip_bad=skip_bad,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenLog:
    path: Place | None  #: the file, folder, pattern or URL; None for the ledger of the store
    settings: Settings
    label: str
    defaults: Defaults
    since: float | None = None
    mixed_arms: bool = False
    skip_bad: bool = False

    @property
    def several(self) -> bool:
        return self.path is not None and is_several(self.path)

    def files(self) -> Sequence[Place]:
        assert self.path is not None
        files = files_of(self.path)
        if not files:
            remedy = "name a folder with *.parquet in it"
            raise InvalidInput("this place has no Parquet files", field=shown(self.path), remedy=remedy)
        if self.skip_bad:
            remedy = "remove the rows, or name one file"
            message = "a log of several files is judged whole, with all of its rows"
            raise InvalidInput(message, field="skip_bad", remedy=remedy)
        return files

    @contextmanager
    def sources(self, *, skipped: list[BadRow]) -> Iterator[Sequence[LogSource]]:
        """Open the log as sources of batches. skipped: receives unusable rows.

        Raises InvalidInput for a ledger without rows, StoreError if the ledger cannot be read.
        """
        if self.path is None:
            with ledger_of(self.settings, label=self.label) as ledger:
                yield [LedgerSource.of(ledger, since=self.since)]
            return
        if self.several:
            yield [self._parquet(file) for file in self.files()]
            return
        # A file whose unusable rows are left out is read row by row, not as columns.
        as_columns = form_of(self.path) == "parquet" and not self.skip_bad
        rows = partial(self._usable, self.path, skipped=skipped)
        yield [self._parquet(self.path) if as_columns else RowsSource(rows=rows)]

    def _parquet(self, path: Place) -> ParquetSource:
        return ParquetSource(path=path, defaults=self.defaults)

    def _usable(self, path: Place, *, skipped: list[BadRow], progress: Progress = no_progress) -> Iterator[Logged]:
        rows = read_rows(path, defaults=self.defaults)
        return usable_rows(with_progress(rows, progress), path=path, skip=self.skip_bad, bad=skipped)

    def arms(self, sources: Sequence[LogSource]) -> tuple[ArmName, ...]:
        """The arms of the first row, or of all rows if mixed arms are allowed. Raises InvalidInput."""
        names: dict[ArmName, None] = {}
        for source in sources:
            names |= dict.fromkeys(arms_of(source, every=self.mixed_arms))
            if names and not self.mixed_arms:
                break
        if not names and self.path is None:
            raise self._no_rows()
        if not names:
            no_rows = "the log has no rows whose arm was drawn"
            message = f"none of {len(sources)} files has rows" if self.several else no_rows
            raise InvalidInput(message, field="log", remedy="give a log with at least one decision")
        check_choice(tuple(names))
        return tuple(names)

    def _no_rows(self) -> InvalidInput:
        later = "" if self.since is None else f" decided since {instant(self.since)}"
        remedy = "decisions count after their feedback is learned; `ragbandit status` shows the learner's progress"
        return InvalidInput(f"the ledger {self.label!r} has no rows{later}", field="log", remedy=remedy)

    @property
    def described(self) -> str:
        return f"the ledger {self.label}" if self.path is None else shown(self.path)

    def policies(self) -> LoggedPolicies:
        if self.path is not None:
            return {}
        with ledger_of(self.settings, label=self.label) as ledger:
            return logged_policies(ledger)

    def read(self, progress: Progress = no_progress, *, older: bool = False, sample: int = 0) -> MemoryLog:
        """Read rows into memory. Raises InvalidInput, or StoreError if the store cannot be read.

        older: True also reads the rows of a ledger that were decided before `since`, for policies to learn.
        sample: keep at most this many rows, drawn by the hash of their id; 0 keeps all.
        """
        skipped: list[BadRow] = []
        logged: LoggedPolicies = {}
        serving = None
        if self.path is not None:
            usable = self._usable(self.path, skipped=skipped, progress=progress)
            rows, total = sampled(self._later(usable), most=sample)
        else:
            with ledger_of(self.settings, label=self.label) as ledger:
                stored = ledger_rows(ledger, since=None if older else self.since)
                rows, total = sampled(with_progress(stored, progress, total=ledger.last_seq()), most=sample)
                logged = logged_policies(ledger)
                serving = serving_settings(ledger, settings=self.settings)
            if all(self.since is not None and row.decision.made_at < self.since for row in rows):
                raise self._no_rows()
        return memory_log(
            rows,
            mixed_arms=self.mixed_arms,
            ledger=self.label if self.path is None else None,
            described=self.described,
            since=self.since,
            skipped=skipped,
            logged=logged,
            serving=serving,
            share=len(rows) / max(total, 1),
        )

    def _later(self, rows: Iterable[Logged]) -> Iterator[Logged]:
        """The rows decided since `since`. Raises InvalidInput at the end if rows have no time, or all are older."""
        recent = older = timeless = 0
        for row in rows:
            timeless += row.decision.made_at == 0.0
            if self.since is None or row.decision.made_at >= self.since:
                recent += 1
                yield row
            else:
                older += 1
        if self.since is not None:
            check_times(kept=recent, older=older, timeless=timeless, since=self.since, log=self.described)


def sampled(rows: Iterable[Logged], *, most: int) -> tuple[list[Logged], int]:
    """Draw at most `most` rows by the hash of their id; 0 keeps all. Returns (rows in order, number of all rows)."""
    total = 0

    def numbered() -> Iterator[tuple[int, Logged]]:
        nonlocal total
        for row in rows:
            total += 1
            yield total, row

    def id_hash(pair: tuple[int, Logged]) -> bytes:
        return hashlib.blake2b(pair[1].decision.id.encode(), digest_size=8).digest()

    pairs = heapq.nsmallest(most, numbered(), key=id_hash) if most else list(numbered())
    return [row for _, row in sorted(pairs, key=itemgetter(0))], total

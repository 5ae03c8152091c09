"""The log of a replay: a file or a ledger of the configured store, read when it is replayed; or rows in memory."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from sqlalchemy import select

from ragbandit.router.config.loading import load as load_settings
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.estimation import Progress, no_progress
from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.logs import (
    BadRow,
    Defaults,
    Logged,
    Place,
    files_of,
    format_of,
    is_remote,
    is_several,
    place_of,
    read_rows,
    reward_defaults,
    shown,
)
from ragbandit.router.offline.logs.batches import (
    LINE,
    BatchSpec,
    LogSource,
    arms_of,
    check_choice,
    decoded,
    drawn,
    offered_arms,
)
from ragbandit.router.offline.logs.ledger_source import LedgerSource
from ragbandit.router.offline.logs.ledger_transfer import ledger_rows
from ragbandit.router.offline.logs.parquet import ParquetSource, RowsSource, rows_batch
from ragbandit.router.offline.replay.plan import CandidateSpec, LoggedPolicies, LoggedPolicy, Skipped, instant
from ragbandit.router.rollouts.overview import settings_of
from ragbandit.router.serving.setup.bootstrap import ledger_of
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.policy_versions import versions_of
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import policies, snapshots
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import IMPORTED, ArmName, PolicyLabel

Row = TypeVar("Row")

#: bad rows that an error names
MOST_NAMED = 5


def logged_policies(database: Database) -> LoggedPolicies:
    """Of a store. Raises StoreError where it cannot be read."""
    known: dict[str, frozenset[LoggedPolicy]] = {}
    with database.read() as connection:
        recorded = connection.execute(
            select(snapshots.c.policy, snapshots.c.version, snapshots.c.algorithm, snapshots.c.params)
        ).all()
        registered = connection.execute(
            select(policies.c.label, policies.c.label, policies.c.algorithm, policies.c.params)
        )
        for label, version, algorithm, params in [*recorded, *registered]:
            made = frozenset({LoggedPolicy.of(algorithm, params=json.loads(params))})
            known[label] = known.get(label, frozenset()) | made
            known[version] = known[label] if version == label else made
    return known


def serving_settings(ledger: Ledger, *, settings: Settings) -> Settings | None:
    """The settings that a store serves by: the configuration, with the changes of a version that was promoted.

    None where no service wrote the ledger: imports did. Raises StoreError where it cannot be read, ConfigError for a
    version that the configuration no longer allows.
    """
    registered = ledger.registered()
    if registered is None or registered["algorithm"] == IMPORTED:
        return None
    with ledger.database.read() as connection:
        versions = versions_of(connection, base=PolicyLabel(settings.policy.label))
    champion = next((version for version in versions if version.state == "champion" and version.changes), None)
    return settings if champion is None else settings_of(settings, champion)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLog:
    """Rows in memory."""

    rows: Sequence[Logged]
    log: Log
    #: the ledger that learned the rows; None: that of each decision's own label
    ledger: str | None = None
    #: where the rows come from, for the report
    described: str = "a log in memory"
    #: rows decided before were left out, seconds since the epoch; None: all rows are here
    since: float | None = None
    #: rows that were left out because they cannot be used
    skipped: Sequence[Skipped] = ()
    #: decisions that were left out: their arm was not drawn, or their label was chosen for its use
    undrawn: int = 0
    #: the policies of its store; none of a log that comes from elsewhere
    logged: LoggedPolicies = field(default_factory=dict)

    def with_columns(self, *, fields: Sequence[str], own: Sequence[str]) -> "MemoryLog":
        """With these fields, and the candidates' pmfs that stand in the rows. Raises InvalidInput for a row without."""
        if not fields and not own:
            return self
        spec = BatchSpec(
            arms=self.log.arms, mixed_arms=True, fields=("version", *fields), own=tuple(own), features=True
        )
        return replace(self, log=decoded(rows_batch(self.rows, [*spec.columns, LINE]), spec=spec))


def open_log(
    path: str | Path | None = None,
    *,
    format: str | None = None,  # noqa: A002 - as in read_rows
    config: str | Path | Settings | None = None,
    label: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    since: float | None = None,
    mixed_arms: bool = False,
    skip_bad: bool = False,
) -> "OpenLog":
    """A log for `replay`. Nothing but the configuration is read here.

    path: a file (JSONL, Parquet); a folder of Parquet files, or a pattern with * for several; for Parquet
    also a URL of fsspec; None: the ledger `label` of the configured store.
    format: of a file whose name does not tell it.
    config: a file, ready Settings, or None for ./config.yaml and the environment.
    label: default policy.label.
    minimum, maximum: bounds of rewards that name none; default reward.minimum and reward.maximum.
    since: rows decided before are left out, seconds since the epoch.
    mixed_arms: rows may offer different arms.
    skip_bad: rows that cannot be used are left out and counted, instead of refused.
    Raises InvalidInput for an unknown format, and for bounds that are not finite or not in order; ConfigError for a
    wrong setting.
    """
    settings = config if isinstance(config, Settings) else load_settings(config).settings
    return OpenLog(
        path=None if path is None else place_of(path),
        format=None if path is None else _format(place_of(path), format=format),
        settings=settings,
        label=label or settings.policy.label,
        defaults=reward_defaults(settings.reward, minimum=minimum, maximum=maximum),
        since=since,
        mixed_arms=mixed_arms,
        skip_bad=skip_bad,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenLog:
    """A log that `replay` reads: in pieces where it can, otherwise into memory."""

    #: None: the ledger of the store
    path: Place | None
    format: str | None
    settings: Settings
    label: str
    defaults: Defaults
    since: float | None = None
    mixed_arms: bool = False
    skip_bad: bool = False

    @property
    def several(self) -> bool:
        """Whether it is a folder of files, or a pattern. Lists nothing."""
        return self.path is not None and is_several(self.path)

    def files(self) -> Sequence[Place]:
        """The files of a folder or a pattern, by name, or the one file. Raises InvalidInput."""
        assert self.path is not None
        if not self.several:
            return [self.path]
        files = files_of(self.path)
        if not files:
            raise InvalidInput(
                "has no Parquet files", field=shown(self.path), remedy="name a folder with *.parquet in it"
            )
        if self.skip_bad:
            raise InvalidInput(
                "a log of several files is judged whole", field="skip_bad", remedy="remove the rows, or name one file"
            )
        return files

    @contextmanager
    def sources(
        self, candidates: Sequence[CandidateSpec], *, skipped: list[Skipped], whole: bool = False
    ) -> Iterator[Sequence[LogSource] | None]:
        """What can be judged in batches; None where all rows are needed in memory: where a candidate reads questions.

        skipped: takes the rows that are left out because they cannot be used. whole: the baseline reads questions.
        Raises InvalidInput for a ledger without rows, StoreError where it cannot be read.
        """
        own = {spec.what for spec in candidates if spec.kind == "column"}
        if whole or any(spec.needs_rows for spec in candidates):
            yield None
        elif self.path is None:
            with ledger_of(self.settings, label=self.label) as ledger:
                yield [LedgerSource.of(ledger, since=self.since)]
        else:
            path = self.path
            files = [ParquetSource(path=one, defaults=self.defaults) for one in self._parquet()]
            in_columns = self.several or bool(files and own <= set(files[0].columns()))
            yield files if in_columns else [RowsSource(rows=lambda: self._usable(path, skipped=skipped))]

    def _parquet(self) -> Sequence[Place]:
        """The files that are read as columns: rows that cannot be used are left out one by one."""
        return self.files() if self.several or (self.format == "parquet" and not self.skip_bad) else ()

    def _usable(self, path: Place, *, skipped: list[Skipped], progress: Progress = no_progress) -> Iterator[Logged]:
        """The rows of a file; those that cannot be used are put into `skipped`, or refused at the end."""
        bad: list[BadRow] = []
        good = 0
        for row in _told(read_rows(path, format=self.format, defaults=self.defaults), progress):
            if isinstance(row, BadRow):
                bad.append(row)
            else:
                good += 1
                yield row
        if bad and not (self.skip_bad and good):
            raise _unusable(path, bad=bad, good=good)
        skipped[:] = [Skipped(where=f"line {row.line}", reason=f"{row.field} {row.reason}") for row in bad]

    def arms(self, sources: Sequence[LogSource]) -> tuple[ArmName, ...]:
        """The arms of the log: those of its first row, or all that any row offers where these may differ."""
        names: dict[ArmName, None] = {}
        for source in sources:
            names |= dict.fromkeys(arms_of(source, every=self.mixed_arms))
            if names and not self.mixed_arms:
                break
        if not names:
            raise self.empty(sources)
        check_choice(tuple(names))
        return tuple(names)

    def empty(self, sources: Sequence[LogSource]) -> InvalidInput:
        """The error of a log without rows."""
        if self.path is None:
            return self._no_rows()
        what = f"none of {len(sources)} files has rows" if self.several else "has no rows that were drawn"
        return InvalidInput(what, field="log", remedy="give a log with at least one decision")

    def _no_rows(self) -> InvalidInput:
        later = "" if self.since is None else f" decided since {instant(self.since)}"
        return InvalidInput(
            f"the ledger {self.label!r} has no rows{later}",
            field="log",
            remedy="decisions count once their feedback is learned; `ragbandit status` says where they are",
        )

    @property
    def described(self) -> str:
        """Where the rows come from, for the report."""
        return f"the ledger {self.label}" if self.path is None else shown(self.path)

    def logged(self) -> LoggedPolicies | None:
        """The policies of the store; None of a file."""
        if self.path is not None:
            return None
        with ledger_of(self.settings, label=self.label) as ledger:
            return logged_policies(ledger.database)

    def current(self) -> Settings | None:
        """The settings that the store serves by, for a ledger that a service wrote; None for any other, and a file."""
        if self.path is not None:
            return None
        with ledger_of(self.settings, label=self.label) as ledger:
            return serving_settings(ledger, settings=self.settings)

    def read(self, progress: Progress = no_progress, *, older: bool = False) -> MemoryLog:
        """All rows in memory; older: of the store also those before `since`, to learn from.

        Raises InvalidInput, and StoreError for a store that cannot be read.
        """
        skipped: list[Skipped] = []
        logged: LoggedPolicies = {}
        if self.path is not None:
            rows = self._later(self.path, list(self._usable(self.path, skipped=skipped, progress=progress)))
        else:
            with ledger_of(self.settings, label=self.label) as ledger:
                stored = ledger_rows(ledger, since=None if older else self.since)
                rows = list(_told(stored, progress, total=ledger.last_seq()))
                logged = logged_policies(ledger.database)
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
        )

    def _later(self, path: Place, rows: list[Logged]) -> list[Logged]:
        """The rows decided since `since`. Raises InvalidInput where rows have no time, and where none is left."""
        since = self.since
        if since is None:
            return rows
        timeless = sum(row.decision.made_at == 0.0 for row in rows)
        later = [row for row in rows if row.decision.made_at >= since]
        older = len(rows) - len(later)
        check_times(kept=len(later), older=older, timeless=timeless, since=since, log=shown(path))
        return later


def _told(rows: Iterable[Row], progress: Progress, *, total: int = 0) -> Iterator[Row]:
    """The same rows; progress is told of every thousandth."""
    for done, row in enumerate(rows, start=1):
        yield row
        if done % 1000 == 0:
            progress("rows read", done, total)


def _format(path: Place, *, format: str | None) -> str:  # noqa: A002 - as in read_rows
    """The format of a file; several files are Parquet."""
    if not is_several(path):
        named = format_of(path, format=format)
        if is_remote(path) and named != "parquet":
            raise InvalidInput(
                f"a log at a URL must be Parquet, not {named}",
                field="log",
                remedy="copy the file to this machine, or export it with --format parquet",
            )
        return named
    if format not in (None, "parquet"):
        raise InvalidInput("several files can be read as Parquet only", field="format", remedy="name one file")
    return "parquet"


def _unusable(path: Place, *, bad: Sequence[BadRow], good: int) -> InvalidInput:
    named = "; ".join(f"line {row.line} {row.field} {row.reason} ({row.remedy})" for row in bad[:MOST_NAMED])
    more = f"; and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
    return InvalidInput(
        f"{len(bad)} of {len(bad) + good} rows cannot be used: {named}{more}",
        field=shown(path),
        remedy="correct them, or give --skip-bad to continue without them" if good else "correct them: no row is left",
    )


def memory_log(rows: Iterable[Logged], *, mixed_arms: bool = False, **about: Any) -> MemoryLog:
    """Rows in memory, checked as arrays too.

    mixed_arms: rows may offer different arms; their columns are then all arms that occur. about: the fields of
    MemoryLog that say where the rows come from: ledger, described, since, skipped, logged.
    Turns that stayed on the arm of an earlier one, and decisions whose arm was pinned by the kill switch, are left out:
    nobody drew their arm. Raises InvalidInput for an empty log, one arm, mixed arms, or a row that cannot be true.
    """
    everything = list(rows)
    spec = BatchSpec(arms=(), mixed_arms=mixed_arms, fields=("version",), features=True)
    batch = rows_batch(everything, [*spec.columns, LINE])
    here = drawn(batch)
    batch = batch.filter(pa.array(here))
    if not batch.num_rows:
        raise InvalidInput(
            "has no rows", field="log", remedy="feedback must have been learned before it can be replayed"
        )
    spec = replace(spec, arms=tuple(offered_arms(batch if mixed_arms else batch.slice(0, 1))))
    check_choice(spec.arms)
    return MemoryLog(
        rows=[row for row, kept in zip(everything, here, strict=True) if kept],
        log=decoded(batch, spec=spec),
        undrawn=int(np.count_nonzero(~here)),
        **about,
    )


def check_times(*, kept: int, older: int, timeless: int, since: float | None, log: str) -> None:
    """Raises InvalidInput where a time is asked for and rows have none, or all are older.

    kept, older: rows decided since then, and before. timeless: of the latter, those without a time.
    """
    if timeless:
        message, remedy = f"{timeless} of {kept + older} rows have no made_at", "log the times, or leave out --since"
        raise InvalidInput(message, field=f"{log} since", remedy=remedy)
    if older and not kept and since is not None:
        message = f"has no rows decided since {instant(since)}: all {older} are older"
        raise InvalidInput(message, field=log, remedy="give an earlier --since")

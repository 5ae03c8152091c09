"""Logs for a replay: files, the ledger of the store or rows in memory, read in batches."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
from sqlalchemy import and_, func, not_, select, true

from ragbandit.router.config.learning import PolicyDefinition
from ragbandit.router.config.loading import load as load_settings
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.examples import UNLEARNED
from ragbandit.router.offline.estimation import Progress, no_progress
from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.logs import (
    BadRow,
    Logged,
    files_of,
    form_of,
    has_several_files,
    usable_rows,
    with_progress,
)
from ragbandit.router.offline.logs.batches import BatchSpec, LogSource, check_choice, decode_batch, offered_arms
from ragbandit.router.offline.logs.columns import LINE, id_keys
from ragbandit.router.offline.logs.jsonl import read_rows
from ragbandit.router.offline.logs.ledger_source import LedgerSource
from ragbandit.router.offline.logs.ledger_transfer import ledger_rows
from ragbandit.router.offline.logs.parquet import ParquetSource, RowsSource, rows_batch
from ragbandit.router.offline.replay.parts import LeftOut, check_times, usable_draws
from ragbandit.router.rollouts.version_settings import settings_of
from ragbandit.router.serving.setup.bootstrap import open_ledger
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.policy_versions import versions_of
from ragbandit.router.storage.sql.tables import closures, decisions, updates, waiting
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.formats import moment, money
from ragbandit.shared.types import IMPORTED, ArmName, PolicyLabel

#: rows that are checked together while rows are read into memory
_PAGE: Final = 4096


def open_log(
    path: str | Path | None = None,
    *,
    config: str | Path | Settings | None = None,
    label: str | None = None,
    since: float | None = None,
    mixed_arms: bool = False,
    skip_bad: bool = False,
) -> "OpenLog":
    """Open a log for `replay`. Only the configuration is read now.

    path: a file in any form of `records`, a folder of Parquet files, or a pattern with *; None for the ledger
    `label` of the configured store.
    config: a file, Settings, or None for ./config.yaml and the environment. Its section `reward` has the bounds and the
    weight of rewards that are logged without them.
    label: default policy.label.
    since: decisions made before this time are not read, seconds since the epoch; None to read all.
    mixed_arms: True accepts rows that offer different arms.
    skip_bad: True leaves out and counts unusable rows; False refuses the log.
    Raises ConfigError for a wrong setting.
    """
    settings = config if isinstance(config, Settings) else load_settings(config).settings
    return OpenLog(
        path=None if path is None else Path(path),
        settings=settings,
        ledger=label or settings.policy.label if path is None else None,
        since=since,
        mixed_arms=mixed_arms,
        skip_bad=skip_bad,
    )


def memory_log(rows: Iterable[Logged], **about: Any) -> "OpenLog":
    """Make a log of rows in memory. about: fields of OpenLog."""
    return OpenLog(rows=list(rows), **about)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLog:
    """A log for policies that read questions: all rows are in memory."""

    log: Log
    rows: Sequence[Logged]  #: the rows of `log`, in the same order
    opened: "OpenLog"  #: where the rows come from
    #: policy that the service uses now; None for a file, and for a ledger that no router has opened
    serving: PolicyDefinition | None = None
    skipped: Sequence[BadRow] = ()
    undrawn: int = 0  #: number of rows that were left out because their arm was not drawn; see `drawn_flags`
    total: int = 0  #: number of rows that the rows in memory were drawn from

    @property
    def share(self) -> float:
        return len(self.log) / self.total

    @property
    def sampled_from(self) -> int | None:
        return self.total if len(self.log) < self.total else None


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenLog:
    path: Path | None = None  #: the file, folder or pattern; None for rows in memory or the ledger of the store
    rows: Sequence[Logged] | None = None  #: rows in memory; None for files and for the ledger of the store
    ledger: str | None = None  #: label of the store's ledger that is read; None for files and rows in memory
    settings: Settings = field(default_factory=Settings)
    since: float | None = None
    mixed_arms: bool = False
    skip_bad: bool = False
    name: str | None = None  #: name of the log in reports; None for its path or the label of its ledger

    @contextmanager
    def _ledger(self) -> Iterator[Ledger]:
        with open_ledger(self.settings, label=self.ledger or self.settings.policy.label) as ledger:
            yield ledger

    @property
    def in_store(self) -> bool:
        return self.path is None and self.rows is None

    @property
    def has_several_files(self) -> bool:
        return self.path is not None and has_several_files(self.path)

    @property
    def described(self) -> str:
        if self.path is not None:
            return self.name or str(self.path)
        return f"the ledger {self.ledger}" if self.in_store else self.name or "a log in memory"

    def files(self) -> Sequence[Path]:
        assert self.path is not None
        files = files_of(self.path)
        if not files:
            remedy = "name a folder with *.parquet in it"
            raise InvalidInput("this place has no Parquet files", field=str(self.path), remedy=remedy)
        if self.skip_bad:
            remedy = "remove the rows, or name one file"
            message = "a log of several files is judged whole, with all of its rows"
            raise InvalidInput(message, field="skip_bad", remedy=remedy)
        return files

    @contextmanager
    def sources(self, *, skipped: list[BadRow]) -> Iterator[Sequence[LogSource]]:
        """Open the log as sources of batches. skipped: receives unusable rows.

        Raises InvalidInput for files that cannot be listed, StoreError if the ledger cannot be read.
        """
        if self.in_store:
            with self._ledger() as ledger:
                yield [LedgerSource(ledger=ledger, upto=ledger.last_seq(), since=self.since)]
        elif self.has_several_files:
            yield [ParquetSource(path=file, defaults=self.settings.reward) for file in self.files()]
        elif self.path is not None and form_of(self.path) == "parquet" and not self.skip_bad:
            yield [ParquetSource(path=self.path, defaults=self.settings.reward)]
        else:  # a file whose unusable rows are left out is read row by row
            yield [RowsSource(rows=partial(self._usable_rows, skipped=skipped))]

    def _usable_rows(self, *, skipped: list[BadRow], progress: Progress = no_progress) -> Iterable[Logged]:
        if self.path is None:
            return self.rows or ()
        rows = with_progress(read_rows(self.path, defaults=self.settings.reward), progress)
        return usable_rows(rows, path=self.path, skip=self.skip_bad, bad=skipped)

    def arms(self, sources: Sequence[LogSource]) -> tuple[ArmName, ...]:
        """The arms of the first drawn row, or of all drawn rows if mixed arms are allowed. Raises InvalidInput."""
        names: dict[ArmName, None] = {}
        for source in sources:
            names |= dict.fromkeys(offered_arms(source, every=self.mixed_arms))
            if names and not self.mixed_arms:
                break
        if not names:
            raise self._no_rows(files=len(sources))
        check_choice(tuple(names))
        return tuple(names)

    def _no_rows(self, *, files: int = 1) -> InvalidInput:
        if not self.in_store:
            no_rows = "the log has no rows whose arm was drawn"
            message = f"none of {files} files has rows" if self.has_several_files else no_rows
            return InvalidInput(message, field="log", remedy="give a log with at least one decision")
        later = "" if self.since is None else f" decided since {moment(self.since)}"
        remedy = "decisions count after their feedback is learned; `ragbandit status` shows the learner's progress"
        return InvalidInput(f"the ledger {self.ledger!r} has no rows{later}", field="log", remedy=remedy)

    def notes(self) -> list[str]:
        """At most one note: the dollars, by arm, that came too late for the rewards of these decisions."""
        if not self.in_store:
            return []
        with self._ledger() as ledger:
            late = ledger.late_dollars(since=self.since)
        shares = "; ".join(f"{arm} {money(dollars, 'dollars')}" for arm, dollars in late.items())
        what = "dollars that came after the decision was learned, so that no reward has them"
        return [f"{what}: {shares}"] if late else []

    def judged_share(self) -> float:
        """Share of the store's decisions that were judged, and so are rows of this log, from 0 to 1. Decisions that
        verdicts leave out do not count. 1 for logs outside the store, and if only the judge judged.
        """
        if not self.in_store:
            return 1.0
        # A decision is learned, closed or waiting.
        is_judged = and_(updates.c.source == "explicit", updates.c.sample_weight > 0.0)
        by_judge = func.coalesce(updates.c.judged_by, "") == "judge"
        parts = [(updates, is_judged & ~by_judge), (updates, is_judged & by_judge), (updates, not_(is_judged))]
        counts = list[int]()
        with self._ledger() as ledger, ledger.database.read() as connection:
            is_compared = closures.c.reason.not_in(UNLEARNED.values())
            for table, condition in (*parts, (closures, is_compared), (waiting, true())):
                query = select(func.count()).select_from(table).where(table.c.policy == ledger.label, condition)
                if self.since is not None:
                    query = query.join(decisions, table.c.decision_id == decisions.c.id)
                    query = query.where(decisions.c.made_at >= self.since)
                counts.append(connection.execute(query).scalar_one())
        return (counts[0] + counts[1]) / sum(counts) if counts[0] else 1.0

    def _serving(self) -> PolicyDefinition | None:
        with self._ledger() as ledger, ledger.database.read() as connection:
            versions = versions_of(connection, base=PolicyLabel(self.settings.policy.label))
            row = ledger.policy_row()
        if row is None or row["algorithm"] == IMPORTED:
            return None
        champion = next((version for version in versions if version.state == "champion" and version.changes), None)
        serving = self.settings if champion is None else settings_of(self.settings, champion)
        return serving.policy_definition

    def read(
        self,
        *,
        fields: Sequence[str] = (),
        pmfs: Mapping[str, str] = MappingProxyType({}),
        sample: int = 0,
        progress: Progress = no_progress,
    ) -> MemoryLog:
        """Read the rows into memory, with their questions. Raises InvalidInput, or StoreError for an unreadable store.

        fields, pmfs: see `BatchSpec`.
        sample: keep at most this many rows, drawn by the hash of their id; 0 keeps all.
        """
        skipped, left_out = list[BadRow](), LeftOut()
        rows, total = self.judged_rows(skipped=skipped, left_out=left_out, sample=sample, progress=progress)
        decisions = [row.decision for row in rows if self.mixed_arms or row is rows[0]]
        arms = tuple(dict.fromkeys(arm for decision in decisions for arm in decision.arms))
        check_choice(arms)
        fields = ("policy", *fields)
        spec = BatchSpec(arms=arms, mixed_arms=self.mixed_arms, fields=fields, pmfs=pmfs)
        return MemoryLog(
            log=decode_batch(rows_batch(rows, [*spec.columns, LINE]), spec=spec),
            rows=rows,
            opened=self,
            serving=self._serving() if self.in_store else None,
            skipped=skipped,
            undrawn=left_out.undrawn,
            total=total,
        )

    def judged_rows(
        self, *, skipped: list[BadRow], left_out: LeftOut, sample: int = 0, progress: Progress = no_progress
    ) -> tuple[list[Logged], int]:
        """Returns (drawn rows that were decided since `since`, at most `sample` of them; number of all such rows).

        skipped: receives unusable rows. left_out: counts the other rows. Raises InvalidInput if no row is left.
        """
        rows, total = list[Logged](), 0
        since = None if self.in_store else self.since
        with self._open_rows(skipped=skipped, progress=progress) as stream:
            while page := list(islice(stream, _PAGE)):
                flags = usable_draws(rows_batch(page, ["facts", "reward", "made_at"]), since=since, left_out=left_out)
                rows += compress(page, flags)
                total += int(np.count_nonzero(flags))
                if sample and len(rows) > 2 * sample:
                    rows = _sample(rows, most=sample)
        counts = {"older": left_out.older, "timeless": left_out.timeless}
        check_times(kept=total, since=self.since, log=self.described, **counts)
        if not rows:
            raise self._no_rows()
        return _sample(rows, most=sample), total

    @contextmanager
    def _open_rows(self, *, skipped: list[BadRow], progress: Progress) -> Iterator[Iterator[Logged]]:
        if not self.in_store:
            yield iter(self._usable_rows(skipped=skipped, progress=progress))
            return
        with self._ledger() as ledger:
            yield with_progress(ledger_rows(ledger, since=self.since), progress, total=ledger.last_seq())


def _sample(rows: list[Logged], *, most: int) -> list[Logged]:
    """At most `most` rows in their order, drawn by the hash of their id; 0 keeps all."""
    if not most or len(rows) <= most:
        return rows
    keys = id_keys(pa.array([row.decision.id for row in rows]))
    return [rows[place] for place in np.sort(np.argpartition(keys, most)[:most])]

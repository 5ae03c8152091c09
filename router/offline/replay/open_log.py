"""Opening a log for replay: which reader, which reward bounds, what is refused."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.errors import InvalidInput
from ragbandit.router.offline.estimation.moments import Vector
from ragbandit.router.offline.logs import BadRow, Defaults, Logged, format_of, read_rows
from ragbandit.router.offline.logs.ledger_transfer import ledger_rows
from ragbandit.router.offline.logs.parquet import opened
from ragbandit.router.offline.replay import Asked, Held, Plan, Replayed, held, judge, replay
from ragbandit.router.offline.replay.candidates import Judged, baselines, described
from ragbandit.router.offline.replay.parquet_source import Streamed, streams
from ragbandit.router.offline.replay.plan import Progress
from ragbandit.router.offline.replay.results import Skipped
from ragbandit.router.offline.replay.times import instant
from ragbandit.router.serving.bootstrap import ledger_of, make_encoder

__all__ = ["MOST_NAMED", "reward_bounds"]


def reward_bounds(settings: Settings, *, minimum: float | None, maximum: float | None) -> Defaults:
    """What holds for rewards that do not say it themselves. Raises InvalidInput where minimum is not below maximum."""
    reward = settings.reward
    defaults = Defaults(
        minimum=reward.minimum if minimum is None else minimum,
        maximum=reward.maximum if maximum is None else maximum,
        weight=reward.weight,
    )
    if not -math.inf < defaults.minimum < defaults.maximum < math.inf:
        raise InvalidInput("must be below maximum", field="minimum", remedy="give the bounds that the rewards have")
    return defaults


@dataclass(frozen=True, kw_only=True, slots=True)
class Asking:
    """The command's words, checked."""

    plan: Plan
    settings: Settings
    label: str
    log: Path | None
    format: str | None
    defaults: Defaults
    since: float | None
    mixed_arms: bool
    skip_bad: bool

    def replayed(self, candidates: Sequence[Asked] | None, *, progress: Progress) -> Replayed:
        """The replay; candidates None: the plain ones of the log."""
        if self.log is not None and self._streams(self.log, candidates or ()):
            return self._streamed(self.log, candidates, progress=progress)
        log, words, skipped = self._stored(progress) if self.log is None else self._file(self.log, progress)
        return replay(
            log,
            candidates=baselines(log.log.arms) if candidates is None else candidates,
            plan=self.plan,
            settings=self.settings,
            encoder=lambda: make_encoder(self.settings.encoder),
            described=words,
            since=self.since,
            skipped=skipped,
            progress=progress,
        )

    def _streams(self, path: Path, candidates: Sequence[Asked]) -> bool:
        parquet = format_of(path, format=self.format) == "parquet"
        return parquet and not self.skip_bad and streams(path, candidates=candidates)

    def _streamed(self, path: Path, candidates: Sequence[Asked] | None, *, progress: Progress) -> Replayed:
        if self.since is not None:
            _check_times(path, _times(path), since=self.since)
        if candidates is None:
            first = next(iter(self._pieces(path, candidates=())), None)
            candidates = baselines(() if first is None else first.log.arms)
        return judge(
            self._pieces(path, candidates=candidates),
            candidates=candidates,
            judged=[Judged(described=described(asked)) for asked in candidates],
            plan=self.plan,
            log=str(path),
            since=self.since,
            progress=progress,
        )

    def _pieces(self, path: Path, *, candidates: Sequence[Asked]) -> Streamed:
        return Streamed(
            path=path,
            candidates=candidates,
            plan=self.plan,
            defaults=self.defaults,
            mixed_arms=self.mixed_arms,
            since=self.since,
        )

    def _file(self, path: Path, progress: Progress) -> tuple[Held, str, list[Skipped]]:
        good: list[Logged] = []
        bad: list[BadRow] = []
        for done, row in enumerate(read_rows(path, format=self.format, defaults=self.defaults), start=1):
            if isinstance(row, BadRow):
                bad.append(row)
            else:
                good.append(row)
            if done % 1000 == 0:
                progress("rows read", done, 0)
        if bad and not (self.skip_bad and good):
            raise _unusable(path, bad=bad, good=len(good))
        skipped = [Skipped(where=f"line {row.line}", reason=f"{row.field} {row.reason}") for row in bad]
        return held(self._later(path, good), mixed_arms=self.mixed_arms), str(path), skipped

    def _later(self, path: Path, rows: list[Logged]) -> list[Logged]:
        """Those decided since. Raises what `_check_times` raises."""
        since = self.since
        if since is None or not rows:
            return rows
        times = np.array([row.decision.made_at for row in rows])
        _check_times(path, times, since=since)
        return [row for row in rows if row.decision.made_at >= since]

    def _stored(self, progress: Progress) -> tuple[Held, str, list[Skipped]]:
        rows = []
        with ledger_of(self.settings, label=self.label) as ledger:
            total = ledger.last_seq()
            for row in ledger_rows(ledger, since=self.since):
                rows.append(row)
                if len(rows) % 1000 == 0:
                    progress("rows read", len(rows), total)
            if not rows:
                later = "" if self.since is None else f" decided since {instant(self.since)}, of {total} in all"
                raise InvalidInput(
                    f"the ledger {self.label!r} has no rows{later}",
                    field="log",
                    remedy="decisions count once their feedback is learned; `ragbandit status` says where they are",
                )
        return held(rows, mixed_arms=self.mixed_arms, ledger=self.label), f"the ledger {self.label}", []


def _unusable(path: Path, *, bad: Sequence[BadRow], good: int) -> InvalidInput:
    named = "; ".join(f"line {row.line} {row.field} {row.reason} ({row.remedy})" for row in bad[:MOST_NAMED])
    more = f"; and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
    return InvalidInput(
        f"{len(bad)} of {len(bad) + good} rows cannot be used: {named}{more}",
        field=str(path),
        remedy="mend them, or give --skip-bad to go on without them" if good else "mend them: no row is left",
    )


def _times(path: Path) -> Vector:
    """When the rows of a Parquet file were decided, 0 where that is not known, shape (n,)."""
    with opened(path) as file:
        if "made_at" not in file.schema_arrow.names:
            return np.zeros(file.metadata.num_rows)
        return np.asarray(file.read(columns=["made_at"]).column(0).fill_null(0).to_numpy(), dtype=np.float64)


def _check_times(path: Path, times: Vector, *, since: float) -> None:
    """Raises InvalidInput where rows have no time, and where none was decided since."""
    timeless = np.count_nonzero(times == 0.0)
    if timeless:
        raise InvalidInput(
            f"{timeless} of {len(times)} rows have no made_at",
            field=f"{path} since",
            remedy="log the times, or leave out --since",
        )
    if len(times) and not (times >= since).any():
        raise InvalidInput(
            f"has no rows decided since {instant(since)}: all {len(times)} are older",
            field=str(path),
            remedy="give an earlier --since",
        )


#: bad rows that an error names
MOST_NAMED = 5

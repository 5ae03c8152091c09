"""The verb that judges policies on logged traffic."""

import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer

from ragbandit.router.cli.arguments import asked_policies, asked_time, is_age, parts
from ragbandit.router.cli.replay_options import (
    AnytimeWord,
    AsJsonWord,
    BaselineWord,
    ConfidenceWord,
    ConfigWord,
    DatabaseWord,
    EstimatorWord,
    FailBelowWord,
    FloorWord,
    FoldsWord,
    InSampleWord,
    LabelWord,
    LearnWord,
    LogFormatWord,
    LogWord,
    MaximumWord,
    MinimumWord,
    MixedArmsWord,
    ParamWord,
    PolicyWord,
    ReportWord,
    RewardModelWord,
    SegmentWord,
    SinceWord,
    SkipBadWord,
    WeightWord,
)
from ragbandit.router.cli.service import console, errors, failing_well, ledger_of, print_json
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.router.errors import InvalidInput
from ragbandit.router.offline.estimation.moments import Vector
from ragbandit.router.offline.logs import BadRow, Defaults, Logged, format_of, read_rows
from ragbandit.router.offline.logs.ledger_transfer import ledger_rows
from ragbandit.router.offline.logs.parquet import opened
from ragbandit.router.offline.replay import Asked, Held, Plan, Replayed, asked_candidates, held, judge, replay
from ragbandit.router.offline.replay.candidates import Judged, baselines, described
from ragbandit.router.offline.replay.parquet_source import Streamed, streams
from ragbandit.router.offline.replay.plan import Progress
from ragbandit.router.offline.replay.results import Skipped
from ragbandit.router.offline.reports.page import check_page, write_page
from ragbandit.router.offline.reports.phrases import headline, instant
from ragbandit.router.offline.reports.terminal import print_replay
from ragbandit.router.offline.simulation.report import bars
from ragbandit.router.serving.bootstrap import check_fallback, make_encoder

__all__ = ["add_replay_verb", "reward_bounds"]

#: bad rows that an error names
MOST_NAMED = 5


def add_replay_verb(app: typer.Typer) -> None:
    """Put `replay` on the command."""

    @app.command(name="replay")
    def replay_(
        *,
        policy: PolicyWord = None,
        baseline: BaselineWord = "logged",
        param: ParamWord = None,
        learn: LearnWord = False,
        floor: FloorWord = None,
        in_sample: InSampleWord = False,
        log: LogWord = None,
        log_format: LogFormatWord = None,
        minimum: MinimumWord = None,
        maximum: MaximumWord = None,
        database: DatabaseWord = None,
        label: LabelWord = None,
        since: SinceWord = None,
        mixed_arms: MixedArmsWord = False,
        skip_bad: SkipBadWord = False,
        estimator: EstimatorWord = "dr",
        reward_model: RewardModelWord = "ridge",
        folds: FoldsWord = 5,
        weight: WeightWord = None,
        confidence: ConfidenceWord = 0.95,
        anytime: AnytimeWord = False,
        segment: SegmentWord = None,
        report: ReportWord = None,
        as_json: AsJsonWord = False,
        fail_below: FailBelowWord = None,
        config: ConfigWord = None,
    ) -> None:
        """What other policies would have earned on logged traffic, how sure that is, and what the log cannot say.

        Example: ragbandit replay --since 7d --policy linucb,fixed:single_step --report page.html

        Exit 0: judged. 1: a difference is not surely at least --fail-below. 2: the log is wrong, or something that was
        asked for cannot be done.
        """
        with failing_well():
            if report is not None:
                check_page(report)
            _check_log_words(
                log,
                store={"database": database, "label": label},
                file={"format": log_format, "minimum": minimum, "maximum": maximum},
            )
            settings = _settings(config, database=database)
            asking = _Asking(
                plan=Plan(
                    estimator=estimator.strip(),
                    weight=weight,
                    baseline=baseline,
                    confidence=confidence,
                    anytime=anytime,
                    segments=tuple(parts(segment or [])),
                    folds=folds,
                    reward_model=reward_model,
                    floor=settings.policy.floor if floor is None else floor,
                    learn=learn,
                    in_sample=in_sample,
                ),
                settings=settings,
                label=label or settings.policy.label,
                log=log,
                format=log_format,
                defaults=reward_bounds(settings, minimum=minimum, maximum=maximum),
                since=_beginning(since, anytime=anytime),
                mixed_arms=mixed_arms,
                skip_bad=skip_bad,
            )
            candidates = _candidates(policy, params=param or [], settings=settings)
            _check_gate(fail_below, candidates=candidates, baseline=baseline)
            with bars(errors) as progress:
                found = asking.replayed(candidates, progress=progress)
            _show(found, report=report, as_json=as_json, fail_below=fail_below)


def _settings(config: str | None, *, database: str | None) -> Settings:
    """The configured settings, on another database if one is named."""
    if database is not None and not database.strip():
        raise InvalidInput("is empty", field="database", remedy="give the URL of a store, or leave it out")
    environ = os.environ if database is None else {**os.environ, "DATABASE_URL": database}
    settings = configuration.load(config, environ=environ).settings
    check_fallback(settings)
    return settings


def _check_log_words(log: Path | None, *, store: dict[str, object], file: dict[str, object]) -> None:
    """Raises InvalidInput for words about a store where a file is read, and the other way round."""
    useless, read = (file, "the store") if log is None else (store, "a file")
    for name, value in useless.items():
        if value is not None:
            remedy = "give --log FILE, or leave it out" if log is None else "leave it out, or leave out --log"
            raise InvalidInput(f"says nothing of {read}", field=name, remedy=remedy)


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


def _check_gate(fail_below: float | None, *, candidates: Sequence[Asked] | None, baseline: str) -> None:
    """Raises InvalidInput for a gate that nothing, or everything, would pass."""
    if fail_below is None:
        return
    if not math.isfinite(fail_below):
        raise InvalidInput(f"{fail_below!r}", field="fail_below", remedy="give a difference of rewards, as -0.01")
    if candidates is not None and all(asked.name == baseline for asked in candidates):
        raise InvalidInput(
            "there is nothing to judge: the only candidate is the baseline",
            field="fail_below",
            remedy="name a --policy that is not the baseline",
        )


def _show(found: Replayed, *, report: Path | None, as_json: bool, fail_below: float | None) -> None:
    """Page, JSON or tables, and the exit status."""
    if report is not None:  # first: whoever reads the terminal through `head` wants the page too
        write_page(found, report)
    if as_json:
        print_json(_finite({"headline": headline(found), **asdict(found)}))
    else:
        print_replay(found, console=console)
    if found.faults:
        raise typer.Exit(2)
    failing = [] if fail_below is None else _failing(found, fail_below)
    if failing:
        message = f"not surely at least {fail_below:g}: {', '.join(failing)}"
        errors.print(message, style="red", soft_wrap=True, highlight=False, markup=False)
        raise typer.Exit(1)


def _failing(found: Replayed, margin: float) -> list[str]:
    """The candidates whose difference may lie below the margin, each with its lower bound."""
    failing = []
    for candidate in found.candidates:
        gap = candidate.difference
        if gap is None:
            continue
        if gap.low is None or gap.biased:
            failing.append(f"{candidate.name} ({'biased' if gap.biased else 'no interval is known'})")
        elif not gap.low >= margin:
            failing.append(f"{candidate.name} ({gap.low:+.4g} at the least)")
    return failing


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asking:
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


def _beginning(since: str | None, *, anytime: bool) -> float | None:
    """Where the log begins, seconds since the epoch. Raises InvalidInput."""
    if since is None:
        return None
    if anytime and is_age(since):
        raise InvalidInput(
            "an age begins elsewhere at every look: what holds at every look of one log does not hold then",
            field="since",
            remedy="give a date with --anytime",
        )
    return asked_time(since, now=time.time())


def _candidates(texts: Sequence[str] | None, *, params: Sequence[str], settings: Settings) -> list[Asked] | None:
    """The candidates, policies of the registry with the configured params or those of --param; None: not named."""
    if texts is None:
        asked_policies([], params=params, settings=settings)  # there is none that a param could be of
        return None
    names = parts(texts)
    learning = [asked.name for asked in asked_candidates(names) if asked.kind == "policy"]
    return asked_candidates(names, params=asked_policies(learning, params=params, settings=settings))


def _finite(value: Any) -> Any:
    """JSON knows no NaN: null."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

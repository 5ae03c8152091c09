"""The verb that judges policies on logged traffic."""

import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from ragbandit.router.cli.arguments import asked_policies, asked_time, is_age, parts
from ragbandit.router.cli.console import console, errors, failing_well, print_json
from ragbandit.router.cli.progress import bars
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
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.router.errors import InvalidInput
from ragbandit.router.offline.replay import Asked, Plan, Replayed, asked_candidates
from ragbandit.router.offline.replay.open_log import Asking, reward_bounds
from ragbandit.router.offline.reports.page import check_page, write_page
from ragbandit.router.offline.reports.phrases import headline
from ragbandit.router.offline.reports.terminal import print_replay
from ragbandit.router.policies.checks import check_fallback
from ragbandit.router.types import finite_json

__all__ = ["add_replay_verb"]


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
            asking = Asking(
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
        print_json(finite_json({"headline": headline(found), **asdict(found)}))
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

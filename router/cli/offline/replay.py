"""`ragbandit replay`: judges policies on logged traffic."""

import math
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import typer

from ragbandit.router.cli.console import bars, console, errors, print_json
from ragbandit.router.cli.offline import replay_options as options
from ragbandit.router.cli.store import parse_policies, parse_time, split_commas
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.processes import cluster_executor, process_executor
from ragbandit.router.offline.replay import (
    CandidateSpec,
    OpenLog,
    Plan,
    ReplayResult,
    open_log,
    parse_candidates,
    replay,
)
from ragbandit.router.offline.reports.page import check_page, write_page
from ragbandit.router.offline.reports.phrases import headline
from ragbandit.router.offline.reports.tables import print_replay
from ragbandit.router.policies.checks import check_fallback
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.formats import number_or_name


def replay_verb(
    *,
    policy: options.Policy = None,
    baseline: options.Baseline = None,
    param: options.Param = None,
    learn: options.Learn = False,
    floor: options.Floor = None,
    log: options.Log = None,
    log_format: options.Format = None,
    minimum: options.Minimum = None,
    maximum: options.Maximum = None,
    database: options.Database = None,
    label: options.Label = None,
    since: options.Since = None,
    mixed_arms: options.MixedArms = False,
    skip_bad: options.SkipBad = False,
    judged: options.Judged = False,
    workers: options.Workers = None,
    cluster: options.Cluster = None,
    estimator: options.Estimator = "dr",
    reward_model: options.RewardModel = "ridge",
    folds: options.Folds = 5,
    price: options.Price = None,
    confidence: options.Confidence = 0.95,
    segment: options.Segment = None,
    report: options.Report = None,
    as_json: options.Json = False,
    fail_below: options.FailBelow = None,
    config: options.Config = None,
) -> None:
    """Estimate the reward of other policies on logged traffic, with intervals.

    Example: ragbandit replay --since 7d --policy linucb,fixed:single_step --report page.html

    Exit 0: judged. 1: the lower bound of a difference is below --fail-below. 2: the log is wrong, or the request
    cannot be done.
    """
    if report is not None:
        check_page(report)
    _check_log_options(
        log,
        store={"database": database, "label": label},
        file={"format": log_format, "minimum": minimum, "maximum": maximum},
    )
    settings = _settings(config, database=database)
    opened = open_log(
        log,
        format=log_format,
        config=settings,
        label=label,
        minimum=minimum,
        maximum=maximum,
        since=_beginning(since),
        mixed_arms=mixed_arms,
        skip_bad=skip_bad,
        judged=judged,
    )
    plan = Plan(
        estimator=estimator.strip(),
        weight=_weight(price, prices=settings.prices),
        baseline=baseline,
        confidence=confidence,
        segments=tuple(split_commas(segment or [])),
        folds=folds,
        reward_model=reward_model,
        floor=floor,
        learn=learn,
    )
    candidates = _candidates(policy, params=param or [], settings=settings)
    _check_gate(fail_below, candidates=candidates, baseline=baseline)
    with _executor(opened, workers=workers, cluster=cluster) as executor, bars(errors) as progress:
        result = replay(opened, candidates=candidates, plan=plan, executor=executor, progress=progress)
    _show(result, report=report, as_json=as_json, fail_below=fail_below)


def _executor(log: OpenLog, *, workers: int | None, cluster: str | None) -> AbstractContextManager[Executor | None]:
    """What judges the files of a log. Raises InvalidInput for one file and the store, and for two executors at once."""
    if workers is None and cluster is None:
        return nullcontext()
    field = "workers" if cluster is None else "cluster"
    if workers is not None and cluster is not None:
        raise InvalidInput(
            "a cluster has workers of its own", field="workers", remedy="leave out --workers or --cluster"
        )
    if not log.several:
        raise InvalidInput(
            "one file, and the store, are judged by one process; several judge a folder of Parquet files",
            field=field,
            remedy=f"give --log FOLDER, or leave out --{field}",
        )
    return process_executor(workers or 1) if cluster is None else cluster_executor(cluster)


def _settings(config: str | None, *, database: str | None) -> Settings:
    """The configured settings, with another database if one is named."""
    if database is not None and not database.strip():
        raise InvalidInput("is empty", field="database", remedy="give the URL of a store, or leave it out")
    environ = os.environ if database is None else {**os.environ, "DATABASE_URL": database}
    settings = configuration.load(config, environ=environ).settings
    check_fallback(settings)
    return settings


def _check_log_options(log: str | None, *, store: dict[str, object], file: dict[str, object]) -> None:
    """Raises InvalidInput for options of a store where a file is read, and the other way round."""
    unused, reason = (file, "applies to a file, but no --log is given")
    remedy = "give --log FILE, or leave it out"
    if log is not None:
        unused, reason = store, "applies to the store, but --log reads a file"
        remedy = "leave it out, or leave out --log"
    for name, value in unused.items():
        if value is not None:
            raise InvalidInput(reason, field=name, remedy=remedy)


def _check_gate(fail_below: float | None, *, candidates: Sequence[CandidateSpec] | None, baseline: str | None) -> None:
    """Raises InvalidInput for a gate that nothing, or everything, would pass."""
    if fail_below is None:
        return
    if not math.isfinite(fail_below):
        raise InvalidInput(
            f"{fail_below!r} is no finite number", field="fail_below", remedy="give a difference of rewards, as -0.01"
        )
    if candidates is not None and all(spec.name == baseline for spec in candidates):
        raise InvalidInput(
            "there is nothing to judge: the only candidate is the baseline",
            field="fail_below",
            remedy="name a --policy that is not the baseline",
        )


def _show(result: ReplayResult, *, report: Path | None, as_json: bool, fail_below: float | None) -> None:
    """Page, JSON or tables, and the exit status."""
    if report is not None:  # first: whoever reads the terminal through `head` wants the page too
        write_page(result, report)
    if as_json:
        print_json({"headline": headline(result), **result.as_json()})
    else:
        print_replay(result, console=console)
    if result.faults:
        raise typer.Exit(2)
    failing = [] if fail_below is None else _failing(result, fail_below)
    if failing:
        message = f"not surely at least {fail_below:g}: {', '.join(failing)}"
        errors.print(message, style="red", soft_wrap=True, highlight=False, markup=False)
        raise typer.Exit(1)


def _failing(result: ReplayResult, margin: float) -> list[str]:
    """The candidates whose difference may lie below the margin, each with its lower bound."""
    failing = []
    for candidate in result.candidates:
        gap = candidate.difference
        if gap is None:
            continue
        if gap.low is None or gap.biased:
            failing.append(f"{candidate.name} ({'biased' if gap.biased else 'no interval is known'})")
        elif not gap.low >= margin:
            failing.append(f"{candidate.name} ({gap.low:+.4g} at the least)")
    return failing


def _weight(price: str | None, *, prices: Mapping[str, float]) -> float | None:
    """The weight of cost of a price: a name of the settings', or a number. Raises InvalidInput."""
    if price is None:
        return None
    wanted = prices.get(price, number_or_name(price))
    if isinstance(wanted, str):
        remedy = f"give a number, or a name of the setting prices ({', '.join(prices) or 'none is configured'})"
        raise InvalidInput(f"{price!r:.80} is no price", field="price", remedy=remedy)
    return wanted


def _beginning(since: str | None) -> float | None:
    """Start of the log, seconds since the epoch. Raises InvalidInput."""
    if since is None:
        return None
    return parse_time(since, now=time.time())


def _candidates(
    texts: Sequence[str] | None, *, params: Sequence[str], settings: Settings
) -> list[CandidateSpec] | None:
    """The candidates, policies of the registry with the configured params or those of --param; None: not named."""
    if texts is None:
        parse_policies([], params=params, settings=settings)  # there is none that a param could be of
        return None
    names = split_commas(texts)
    learning = [spec.name for spec in parse_candidates(names) if spec.kind == "policy"]
    return parse_candidates(names, params=parse_policies(learning, params=params, settings=settings))

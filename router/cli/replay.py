"""`ragbandit replay`: judges policies on logged traffic."""

import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ragbandit.router.cli.console import ConfigOption, JsonOption, bars, console, errors, print_json
from ragbandit.router.cli.store import parse_policies, parse_time, split_commas
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.charts import check_page, write_page
from ragbandit.router.offline.processes import process_executor
from ragbandit.router.offline.replay import (
    CandidateSpec,
    OpenLog,
    Plan,
    ReplayResult,
    open_log,
    parse_candidates,
    replay,
)
from ragbandit.router.offline.replay.report import headline, print_replay
from ragbandit.router.policies.checks import check_fallback
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.formats import number_or_name


def replay_verb(
    *,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="a policy's NAME, a snapshot's VERSION, fixed:ARM or column:KEY [,...]; may be repeated. Default: "
            "every arm of the log, and uniform"
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="to compare with: current (the policy that serves, as it is now), logged (as it served), or a "
            "candidate; default: current for the store, and for a file that the service logged where a candidate "
            "reads questions"
        ),
    ] = None,
    param: Annotated[list[str] | None, typer.Option(help="NAME.KEY=VALUE of a policy; may be repeated")] = None,
    learn: Annotated[
        bool, typer.Option("--learn", help="policies learn along the log (progressive validation)")
    ] = False,
    floor: Annotated[
        float | None,
        typer.Option(help="least probability of every arm; default as served: policy.floor, policy.cold_start_floor"),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(help="a file (jsonl, parquet), or a folder of Parquet files, or their URL; default the store"),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option("--format", help="format of the file, if its name does not show it")
    ] = None,
    label: Annotated[str | None, typer.Option(help="the store's ledger; default policy.label")] = None,
    since: Annotated[str | None, typer.Option(help="a date, a time, or an age such as 7d")] = None,
    mixed_arms: Annotated[bool, typer.Option("--mixed-arms", help="rows may offer different arms")] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="leave out rows that cannot be used")] = False,
    workers: Annotated[
        int | None, typer.Option(help="processes that judge the files of a folder; default this one", min=1)
    ] = None,
    estimator: Annotated[str, typer.Option(help="dr, sndr, ips, snips or dm")] = "dr",
    reward_model: Annotated[str, typer.Option(help="ridge or mean")] = "ridge",
    folds: Annotated[int, typer.Option(help="folds of the questions for cross-fitting")] = 5,
    price: Annotated[
        str | None,
        typer.Option(
            help="all at this weight of cost: rewards are read, and policies asked, at it: a number, or a name of the "
            "setting cost_weights; default: as logged"
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="confidence of every interval")] = 0.95,
    segment: Annotated[
        list[str] | None, typer.Option(help="tenant, version or fields of the context [,...]; may be repeated")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="write the tables as FILE.html")] = None,
    as_json: JsonOption = False,
    fail_below: Annotated[
        float | None,
        typer.Option(help="exit 1 unless the lower bound of every difference is at least this"),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Estimate the reward of other policies on logged traffic, with intervals.

    Example: ragbandit replay --since 7d --policy linucb,fixed:single_step --report page.html

    Exit 0: judged. 1: the lower bound of a difference is below --fail-below. 2: the log is wrong, or the request
    cannot be done.
    """
    if report is not None:
        check_page(report)
    if log is None and log_format is not None:
        message = "applies to a file, but no --log is given"
        raise InvalidInput(message, field="format", remedy="give --log FILE, or leave it out")
    if log is not None and label is not None:
        message = "applies to the store, but --log reads a file"
        raise InvalidInput(message, field="label", remedy="leave it out, or leave out --log")
    settings = configuration.load(config).settings
    check_fallback(settings)
    opened = open_log(
        log,
        format=log_format,
        config=settings,
        label=label,
        since=None if since is None else parse_time(since, now=time.time()),
        mixed_arms=mixed_arms,
        skip_bad=skip_bad,
    )
    plan = Plan(
        estimator=estimator.strip(),
        weight=_weight(price, prices=settings.cost_weights),
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
    with _executor(opened, workers=workers) as executor, bars(errors) as progress:
        result = replay(opened, candidates=candidates, plan=plan, executor=executor, progress=progress)
    _show(result, report=report, as_json=as_json, fail_below=fail_below)


def _executor(log: OpenLog, *, workers: int | None) -> AbstractContextManager[Executor | None]:
    """What judges the files of a log. Raises InvalidInput for one file and the store."""
    if workers is None:
        return nullcontext()
    if not log.several:
        raise InvalidInput(
            "one file, and the store, are judged by one process; several judge a folder of Parquet files",
            field="workers",
            remedy="give --log FOLDER, or leave out --workers",
        )
    return process_executor(workers)


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
    if report is not None:  # first: `head` on the terminal output must not cost the page
        write_page(report, show=partial(print_replay, result))
    if as_json:
        print_json({"headline": headline(result), **result.as_json()})
    else:
        print_replay(result, console)
    if result.faults:
        raise typer.Exit(2)
    failing = [] if fail_below is None else _failing(result, fail_below)
    if failing:
        message = f"not surely at least {fail_below:g}: {', '.join(failing)}"
        errors.say(message, style="red")
        raise typer.Exit(1)


def _failing(result: ReplayResult, margin: float) -> list[str]:
    """The candidates whose difference may lie below the margin, each with its lower bound."""
    failing = []
    for candidate in result.candidates:
        gap = candidate.difference
        if gap is None:
            continue
        if gap.low is None:
            failing.append(f"{candidate.name} (no interval is known)")
        elif not gap.low >= margin:
            failing.append(f"{candidate.name} ({gap.low:+.4g} at the least)")
    return failing


def _weight(price: str | None, *, prices: Mapping[str, float]) -> float | None:
    """The weight of cost of a price: a name of the settings', or a number. Raises InvalidInput."""
    if price is None:
        return None
    wanted = prices.get(price, number_or_name(price))
    if isinstance(wanted, str):
        remedy = f"give a number, or a name of the setting cost_weights ({', '.join(prices) or 'none is configured'})"
        raise InvalidInput(f"{price!r:.80} is no price", field="price", remedy=remedy)
    return wanted


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

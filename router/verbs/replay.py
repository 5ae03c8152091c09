"""`ragbandit replay`: estimates the reward of other policies on logged traffic."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from ragbandit.router.cli.console import console, errors, print_json
from ragbandit.router.cli.options import ConfigOption, JsonOption, SkipBadOption
from ragbandit.router.cli.progress import show_progress
from ragbandit.router.cli.store import parse_policies, parse_time, split_commas
from ragbandit.router.comparison.assessment import Assessment
from ragbandit.router.comparison.page import check_page, write_page
from ragbandit.router.comparison.terminal import print_assessment
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.learning import PolicySettings
from ragbandit.router.offline.replay import CandidateSpec, Plan, ReplayResult, open_log, parse_candidates, replay
from ragbandit.router.offline.replay.plan import SAMPLE
from ragbandit.router.offline.replay.report import headline, replay_assessment
from ragbandit.router.policies.settings_check import check_fallback
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.json_lines import rereadable
from ragbandit.shared.texts.formats import number_or_name
from ragbandit.shared.types import finite_json


def replay_verb(
    *,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME of a policy, fixed:ARM or column:KEY [,...]; repeat it. Default: every arm, and uniform"
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="to compare with: current (the policy that serves, as it is now), logged (as it served), or a "
            "candidate; default: current if a candidate is a policy and the service logged the rows, else logged"
        ),
    ] = None,
    param: Annotated[list[str] | None, typer.Option(help="NAME.KEY=VALUE of a policy; may be repeated")] = None,
    sample: Annotated[int, typer.Option(help="most rows that policies learn, drawn by id; 0: all")] = SAMPLE,
    log: Annotated[
        str | None,
        typer.Option(help="a file (JSON Lines, CSV, Parquet) or a folder of Parquet files; default: the store"),
    ] = None,
    label: Annotated[str | None, typer.Option(help="ledger of the store; default: policy.label")] = None,
    since: Annotated[str | None, typer.Option(help="only decisions since a date, a time, or an age (7d)")] = None,
    mixed_arms: Annotated[bool, typer.Option("--mixed-arms", help="accept rows with different arms")] = False,
    skip_bad: SkipBadOption = False,
    folds: Annotated[int, typer.Option(help="number of folds for cross-fitting")] = 5,
    price: Annotated[
        str | None,
        typer.Option(
            help="weight of cost at which rewards are read and policies asked: a number, or a name of the setting "
            "cost_weights; default: as logged"
        ),
    ] = None,
    segment: Annotated[list[str] | None, typer.Option(help="results also by tenant, version, context keys")] = None,
    report: Annotated[Path | None, typer.Option(help="write the page FILE.html with pictures")] = None,
    write_pmfs: Annotated[
        Path | None,
        typer.Option(help="write the probabilities of policies that learn, row by row, into FILE.jsonl or .parquet"),
    ] = None,
    as_json: JsonOption = False,
    everything: Annotated[bool, typer.Option("--all", help="print every comparison, table and note")] = False,
    config: ConfigOption = None,
) -> None:
    """Estimate the reward of other policies on logged traffic, with intervals.

    Example: `ragbandit replay --since 7d --policy linucb,fixed:single_step --report page.html`

    Exit code 0: success. 2: the log has faults, or the request is invalid.
    """
    if report is not None:
        check_page(report)
    if log is not None and label is not None:
        message = "--label applies to the store, but --log reads a file"
        raise InvalidInput(message, field="label", remedy="leave out --label or --log")
    settings = configuration.load(config).settings
    check_fallback(settings.policy, arms=list(settings.arms))
    plan = Plan(
        weight=_weight(price, prices=settings.cost_weights),
        baseline=baseline,
        segments=tuple(split_commas(segment or [])),
        folds=folds,
        sample=sample,
    )
    candidates = _candidates(policy, params=param or [], settings=settings.policy)
    with contextlib.ExitStack() as stack:
        opened = replace(
            open_log(
                None if log is None else stack.enter_context(rereadable(Path(log))),
                config=settings,
                label=label,
                since=None if since is None else parse_time(since, now=time.time()),
                mixed_arms=mixed_arms,
                skip_bad=skip_bad,
            ),
            name=log,
        )
        progress = stack.enter_context(show_progress(errors))
        result = replay(opened, candidates=candidates, plan=plan, pmfs=write_pmfs, progress=progress)
    assessment = replace(replay_assessment(result), arms=tuple(settings.arms))
    _show(result, assessment, report=report, as_json=as_json, everything=everything)


def _show(
    result: ReplayResult, assessment: Assessment, *, report: Path | None, as_json: bool, everything: bool
) -> None:
    if report is not None:  # first, because printing fails if `head` closes the output
        write_page(report, assessment)
    if as_json:
        print_json(
            {
                "headline": headline(result),
                **result.as_json(),  # its "comparisons" is only their number, which the list below replaces
                "comparisons": finite_json([asdict(one) for one in assessment.comparisons]),
            }
        )
    else:
        print_assessment(assessment, console, show_all=everything, page=report)
    if result.faults:
        raise typer.Exit(2)


def _weight(price: str | None, *, prices: Mapping[str, float]) -> float | None:
    """The cost weight of --price, which is a number or a name in `cost_weights`. Raises InvalidInput."""
    if price is None:
        return None
    weight = prices.get(price, number_or_name(price))
    if isinstance(weight, str):
        remedy = f"give a number, or a name of the setting cost_weights ({', '.join(prices) or 'none is configured'})"
        raise InvalidInput(f"{price!r:.80} is not a price", field="price", remedy=remedy)
    return weight


def _candidates(
    texts: Sequence[str] | None, *, params: Sequence[str], settings: PolicySettings
) -> list[CandidateSpec] | None:
    if texts is None:
        parse_policies([], params=params, settings=settings)  # refuses --param: no policy has params here
        return None
    names = split_commas(texts)
    learning = [spec.name for spec in parse_candidates(names) if spec.kind == "policy"]
    return parse_candidates(names, params=parse_policies(learning, params=params, settings=settings))

"""`ragbandit evaluate --table TABLE --policy ...`: rows of routers on a table with the outcome of every arm."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from ragbandit.additions.evaluation.routers.online import OnlineRow, online_rows
from ragbandit.additions.evaluation.routers.picks import TablePicks, ask_for_picks
from ragbandit.additions.evaluation.routers.play import (
    PlayTask,
    PolicyPlay,
    Setup,
    check_folds,
    check_stream,
    make_policies,
    make_tasks,
    play_all,
)
from ragbandit.additions.evaluation.routers.play_file import PlayFile, check_unused
from ragbandit.additions.evaluation.routers.report import routers_assessment
from ragbandit.additions.evaluation.routers.routing_table import (
    RoutingTable,
    check_has_charged_cost,
    question_totals,
    time_one_of,
)
from ragbandit.additions.evaluation.routers.rows import (
    MIXTURE,
    ORACLE,
    UNIFORM,
    RouterRow,
    baseline_rows,
    rows_of_policy,
)
from ragbandit.router.cli.console import console, errors, interruptible, print_json
from ragbandit.router.cli.outcome_tables import read_outcome_table
from ragbandit.router.cli.store import parse_amounts, parse_policies, split_commas
from ragbandit.router.comparison.assessment import Assessment
from ragbandit.router.comparison.page import write_page
from ragbandit.router.comparison.terminal import print_assessment
from ragbandit.router.config.context_schema import ContextSchema
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.encoders.feature_cache import embed_texts
from ragbandit.router.offline.estimation import Progress
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.logs.tables import LabelledTable, with_hops, with_measure
from ragbandit.router.offline.passes import table_rows
from ragbandit.router.policies import with_settings
from ragbandit.router.policies.base import Policy
from ragbandit.router.policies.finetuned.params import RIGHT
from ragbandit.router.policies.needs import need_source
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.processes.this_process import cores
from ragbandit.shared.texts.formats import counted
from ragbandit.shared.types import ArmName
from ragbandit.workers.setup.generators import make_generator

#: baselines, which are always printed, so --policy may name them
_BASELINES: Final = (ORACLE, UNIFORM, MIXTURE)
_FIXED: Final = "fixed:"
#: defaults of --folds and --seeds
FOLDS: Final = 5
SEEDS: Final = 5
#: number of decisions from which on more processes are faster, since each takes seconds to start
WORTH_PROCESSES: Final = 5000


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterOptions:
    """The options of `evaluate` for rows of routers."""

    table: Path
    policies: Sequence[str]
    param: Sequence[str] | None = None
    train: Path | None = None
    folds: int | None = None
    seeds: int | None = None
    columns: Sequence[str] | None = None
    skip_bad: bool = False
    measure: str | None = None
    total: str | None = None
    train_total: str | None = None
    hops: str | None = None
    datasets: str | None = None
    #: file of the plays; None to store no plays
    answers: Path | None = None
    resume: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """Rows of routers, with the predicted outcomes, the rewards of the passes, and notes."""

    rows: Sequence[RouterRow]
    outcomes: RoutingTable
    online: Sequence[OnlineRow]
    notes: Sequence[str]


def evaluate_routers(options: RouterOptions, *, settings: Settings, progress: Progress) -> Evaluated:
    """Play the policies on the table."""
    if options.answers is not None and not options.resume:
        check_unused(options.answers)  # before anything is computed
    names = policies_of(options.policies)
    policies = parse_policies(names, params=options.param or (), settings=settings.policy)
    test, measure, remarks = _read_table(options.table, options=options, schema=settings.context)
    if options.train_total is not None and options.train is None:
        message, remedy = "counts the questions of the table --train, which is not given", "use --total for --table"
        raise InvalidInput(message, field="train-total", remedy=remedy)
    train = test
    if options.train is not None:
        train, more = _read_train_table(options, arms=test, measure=measure, schema=settings.context)
        remarks += [f"{options.train}: {remark}" for remark in more]
    _check_fixed_arms(options.policies, arms=test.arms)
    folds = 1 if options.train is not None else options.folds or FOLDS
    if options.train is None:
        check_folds(folds, rows=len(test.rows))
    complete = {
        name: with_settings(
            name,
            params=params,
            schema=settings.context,
            facts=settings.arm_facts,
            weight=settings.reward.weight,
        )
        for name, params in policies.items()
    }
    instances = make_policies(complete, arms=test.arms)
    is_stream = folds == 1 and options.train is None
    if is_stream:
        check_stream(instances)
    encoder = None
    if any("features" in policy.needs for policy in instances.values()):
        progress("loading the encoder", 0, 0)
        encoder = make_encoder(settings.encoder)
    for table in (test, train):
        check_has_charged_cost(table, reward=settings.reward)
    make = partial(
        _routing_table,
        measure=measure,
        made_rows=partial(table_rows, reward=settings.reward, label=settings.policy.label),
        encoder=encoder,
        time_one=time_one_of(test.arms, arms=settings.worker_arms),
        progress=progress,
    )
    known = make(test, totals=question_totals(test, total=parse_amounts(options.total, field="total")))
    setup = Setup(train=known, test=known, folds=folds, is_stream=is_stream, policy=settings.policy, policies=complete)
    if options.train is not None:
        totals = question_totals(train, total=parse_amounts(options.train_total, field="train-total"))
        setup = replace(setup, train=make(train, totals=totals))
    notes = remarks if encoder is None else [*remarks, f"features are of the encoder {encoder.source}"]
    of_picks: dict[str, str | None] = {}
    if any("pick" in policy.needs for policy in instances.values()):
        pick = need_source("pick").model(settings.policy, generator=settings.generator)
        generator = make_generator(pick.generator)
        described: dict[str, Any] = {"descriptions": settings.arm_descriptions, "limits": pick, "generator": generator}
        picks = _ask_for_picks(test, **described, file=options.answers, progress=progress)
        setup = replace(setup, picks=picks.by_question, pick_seconds=picks.seconds)
        notes.append(picks.note)
        of_picks = {name: picks.remark for name, policy in instances.items() if "pick" in policy.needs}
    tasks = make_tasks(setup, policies=instances, seeds=options.seeds or SEEDS)
    plays = _play_missing(tasks, setup=setup, instances=instances, options=options, progress=progress)
    rows = [
        replace(row, remark=of_picks.get(name))
        for name in names
        for row in rows_of_policy(name, plays[name], train=setup.train, test=setup.test)
    ]
    at = next((row.all["cost"].mean for row in rows), None)
    rows += baseline_rows(setup.test, at=at)
    online = online_rows(plays, outcomes=setup.train)
    notes = _notes(rows, setup=setup, options=options) + _online_notes(online) + notes
    return Evaluated(rows=rows, outcomes=setup.test, online=online, notes=notes)


def _routing_table(
    table: LabelledTable,
    *,
    measure: str,
    made_rows: Callable[..., Sequence[Logged]],
    encoder: Encoder | None,
    time_one: ArmName | None,
    progress: Progress,
    totals: Mapping[str, float] | None = None,
) -> RoutingTable:
    """The table with its rows. made_rows: `table_rows` with its settings. encoder: None if no policy needs features."""
    features, encoder_hash = None, ""
    if encoder is not None:
        texts = [row.question for row in table.rows]
        features, encoder_hash = embed_texts(texts, encoder=encoder, progress=progress), encoder.hash
    rows = made_rows(table, features=features, encoder_hash=encoder_hash)
    return RoutingTable(table=table, measure=measure, rows=rows, features=features, totals=totals, time_one=time_one)


def _ask_for_picks(table: LabelledTable, *, file: Path | None, **given: Any) -> TablePicks:
    """Ask a model which arm it picks for each question of the table.

    file: file of plays; the model's replies are kept in a file next to it. given: arguments of `ask_for_picks`.
    """
    texts = list(dict.fromkeys(row.question for row in table.rows))
    kept = None if file is None else file.with_suffix(".picks.jsonl")
    with interruptible(_stop_message(file, what="picks")):
        return asyncio.run(ask_for_picks(texts, arms=table.arms, file=kept, **given))


def _stop_message(file: Path | None, *, what: str) -> str:
    """The message after Ctrl-C. file: where the plays or picks are kept."""
    if file is None:
        return "stopped; with --answers FILE the command could continue"
    return f"stopped; {file} keeps the {what} so far: continue with --resume"


def policies_of(names: Sequence[str]) -> list[str]:
    """The policies among these names; baselines are printed anyway."""
    return [name for name in dict.fromkeys(split_commas(names)) if name not in _BASELINES and not _is_fixed(name)]


def _is_fixed(name: str) -> bool:
    return name == "fixed" or name.startswith(_FIXED)


def _check_fixed_arms(names: Sequence[str], *, arms: Sequence[ArmName]) -> None:
    for name in split_commas(names):
        if name.startswith(_FIXED) and name.removeprefix(_FIXED) not in arms:
            message = f"{name.removeprefix(_FIXED)!r} is not an arm of the table"
            raise InvalidInput(message, field="policy", remedy=f"use one of {', '.join(arms)}")


def _read_table(path: Path, *, options: RouterOptions, schema: ContextSchema) -> tuple[LabelledTable, str, list[str]]:
    """Read a table, and take the data sets, hops and measure that the options name.

    Returns (table, measure, remarks about the reading).
    """
    given: dict[str, Any] = {"columns": options.columns, "skip_bad": options.skip_bad, "schema": schema}
    table, remarks = read_outcome_table(path, **given)
    wanted = split_commas([options.datasets or ""])
    if wanted:
        known = {row.dataset for row in table.rows}
        for name in wanted:
            if name not in known:
                names = ", ".join(sorted(one for one in known if one)) or "none"
                message, remedy = f"no row is of the data set {name!r}", f"the table has {names}"
                raise InvalidInput(message, field="datasets", remedy=remedy)
        table = replace(table, rows=tuple(row for row in table.rows if row.dataset in wanted))
    hops = parse_amounts(options.hops, field="hops")
    known = {row.dataset for row in table.rows}
    table = with_hops(table, {name: int(value) for name, value in hops.items() if not wanted or name in known})
    return *with_measure(table, options.measure), remarks


def _read_train_table(
    options: RouterOptions, *, arms: LabelledTable, measure: str, schema: ContextSchema
) -> tuple[LabelledTable, list[str]]:
    assert options.train is not None
    if options.folds is not None:
        raise InvalidInput("folds are cut only without --train", field="folds", remedy="leave one of the two out")
    table, own, remarks = _read_table(options.train, options=replace(options, measure=measure), schema=schema)
    if own != measure or {*table.arms} != {*arms.arms}:
        message = f"has the arms {', '.join(table.arms)}, and --table has {', '.join(arms.arms)}"
        raise InvalidInput(message, field="train", remedy="both tables need the same arms and measure")
    return replace(table, arms=arms.arms), remarks


def _play_missing(
    tasks: Sequence[PlayTask],
    *,
    setup: Setup,
    instances: Mapping[str, Policy],
    options: RouterOptions,
    progress: Progress,
) -> dict[str, dict[int, list[PolicyPlay]]]:
    """Policy -> seed -> play of each fold. Reuses plays of the file, except plays of policies that ask a model."""
    here = {name for name, policy in instances.items() if "text" in policy.needs}  # a model uses all cores
    again = {name for name, policy in instances.items() if "pick" in policy.needs}
    facts = {name: policy.state()[1] for name, policy in instances.items()}
    kept = PlayFile(options.answers, setup=setup, facts=facts)
    try:
        if kept.others:
            others = f"{counted(kept.others, 'play')} of another table, policy or setting"
            errors.say(f"not used: {others} in {options.answers}")
        missing = [task for task in tasks if task not in kept.plays or task.policy in again]
        away = [task for task in missing if task.policy not in here]
        jobs = min(cores(), len(away)) if len(away) * len(setup.train.table.rows) >= WORTH_PROCESSES else 1
        with interruptible(_stop_message(options.answers, what="plays")):
            for task, played in play_all(missing, setup=setup, here=frozenset(here), jobs=jobs, progress=progress):
                kept.add(task, played)
        by_seed: dict[str, dict[int, list[PolicyPlay]]] = {}
        for task in tasks:
            by_seed.setdefault(task.policy, {}).setdefault(task.seed, []).append(kept.plays[task])
        return by_seed
    finally:
        kept.close()


def _notes(rows: Sequence[RouterRow], *, setup: Setup, options: RouterOptions) -> list[str]:
    test = setup.test
    how = f"each of {setup.folds} folds is predicted after the others are learned"
    if options.train is not None:
        how = f"{options.train} is learned, and {options.table} predicted"
    elif setup.is_stream:
        how = "every question is decided once, in the order of the seed, and learned"
    reward = f"rewards are {test.measure} - {test.rows[0].reward.weight:g} x cost"
    notes = [
        f"{counted(len(test.table.rows), 'question')}, {counted(options.seeds or SEEDS, 'seed')}; {how}",
        "± is a standard error over seeds, which change the order of the questions and the draws",
        f"an answer is right if {test.measure} is {RIGHT:g} or more; {reward}",
        "a policy that learns online sees only outcomes of drawn arms"
        + ("" if setup.is_stream else "; its row is its greedy choice after the pass"),
        "above mixture: points of quality above the best random mixture of two arms that costs as much",
    ]
    if options.train is not None:
        both = {row.question for row in setup.train.table.rows} & {row.question for row in test.table.rows}
        if both:
            notes.append(f"{counted(len(both), 'question')} of {options.table} were learned too: results are too good")
    if test.totals is not None:
        left_out = sum(test.totals.values()) - len(test.table.rows)
        notes.append(f"qualities count {left_out:,.0f} questions that the table leaves out as wrong for every arm")
    if options.train is not None and any(row.kind == "first pass" for row in rows):
        count = f"the {counted(len(setup.train.table.rows), 'question')} of {options.train}"
        if setup.train.totals is not None:
            count = f"all {sum(setup.train.totals.values()):,.0f} questions of --train-total"
        more = "; --train-total counts those that it leaves out" if setup.train.totals is None else ""
        notes.append(f"qualities of a first pass are shares of {count}{more}")
    if "time" in rows[0].all:
        notes.append(f"Time: mean seconds / mean seconds of {test.time_one}, the time of choosing included")
    return notes + [f"{row.name}: {row.fault}" for row in rows if row.fault is not None]


def _online_notes(online: Sequence[OnlineRow]) -> list[str]:
    if not online:
        return []
    length = counted(online[0].questions, "question")
    return [
        f"while learning: sums over a pass of {length}, with floors and exploration",
        "regret: reward of each question's best arm, which is known afterwards only, minus reward of the chosen arm",
    ]


def print_routers(evaluated: Evaluated, *, report: Path | None, as_json: bool) -> None:
    """Write the page, if its path is given, and print the rows as JSON or as tables."""
    if report is not None:
        write_page(report, _assessment_of(evaluated, full=True))
    if as_json:
        outcomes = evaluated.outcomes
        print_json(
            {"measure": outcomes.measure, "questions": len(outcomes.table.rows), "notes": list(evaluated.notes)}
            | {"routers": [row.as_json() for row in evaluated.rows]}
            | {"online": [row.as_json() for row in evaluated.online]}
        )
        return
    print_assessment(_assessment_of(evaluated, full=False), console, show_all=True, page=report)


def _assessment_of(evaluated: Evaluated, *, full: bool) -> Assessment:
    return routers_assessment(
        evaluated.rows, outcomes=evaluated.outcomes, online=evaluated.online, notes=evaluated.notes, full=full
    )

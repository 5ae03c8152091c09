"""Verbs on policies that learn from tables and logs: `policy train`, `policy warm` and `simulate`."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Printed

from ragbandit.router.cli.console import ConfigOption, JsonOption, bars, console, errors, print_json, show_rows
from ragbandit.router.cli.store import opened, parse_policies, parse_weights
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.examples import policy_of
from ragbandit.router.learning.monitoring.price import implied, proposal
from ragbandit.router.offline.charts import check_png
from ragbandit.router.offline.logs import format_of
from ragbandit.router.offline.logs.tables import read_questions, read_table, train
from ragbandit.router.offline.processes import cores
from ragbandit.router.offline.replay.opening import open_log
from ragbandit.router.offline.replay.plan import EstimateWithInterval
from ragbandit.router.offline.simulation import simulate
from ragbandit.router.offline.simulation.measure import plot_frontier, print_training
from ragbandit.router.offline.warm import (
    HeldOut,
    WarmRows,
    check_policy,
    enter,
    held_out,
    learner_of,
    log_material,
    table_material,
)
from ragbandit.router.policies.checks import check_fallback
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.shared.errors import InvalidInput


def train_verb(
    *,
    policy: Annotated[str, typer.Option(help="adaptive_rag or multi_label")],
    table: Annotated[Path, typer.Option(help="JSONL: question, correct and steps per arm")],
    out: Annotated[Path, typer.Option(help="the folder to write; not there yet, or empty")],
    questions: Annotated[
        Path | None, typer.Option(help="JSONL: question and hops, for labels by inductive bias")
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option(help="of the policy: NAME.KEY=VALUE, as multi_label.seed=1; may be repeated")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="passes over the rows")] = None,
    as_json: JsonOption = False,
) -> None:
    """Train a policy on a full-information table, for the param `trained`."""
    named = parse_policies([policy], params=param or [], settings=Settings()).get(policy, {})
    chosen = {**named, **({} if epochs is None else {"epochs": epochs})}
    rows = list(read_table(table).rows)
    if questions is not None:
        rows += read_questions(questions, known=rows)
    with bars(errors) as show:
        report = train(
            policy, params=chosen, rows=rows, out=out, progress=lambda done, total: show("batches", done, total)
        )
    if as_json:
        print_json(report)
    else:
        _print_trained(report)


def _print_trained(report: Mapping[str, Any]) -> None:
    """A line per epoch, then what was used and what to do with it."""
    rows = []
    for number, line in enumerate(report["epochs"], start=1):
        held = [f"{line['validation_loss']:.3f}", f"{line['accuracy']:.3f}"] if "accuracy" in line else ["", ""]
        rows.append([str(number), f"{line['loss']:.3f}", *held, "kept" if number == report["best_epoch"] else ""])
    show_rows(("epoch", "loss", "held-out loss", "held-out accuracy", ""), rows)
    labels = ", ".join(f"{arm} {count}" for arm, count in report["labels"].items())
    _print(
        f"{report['used']} of {report['rows']} rows had a label ({report['inductive']} by their hops), "
        f"{report['validation_rows']} of them were held out; labels: {labels}"
    )
    _print(f"set policy.params.trained to {report['folder']}")


def warm(
    *,
    table: Annotated[Path | None, typer.Option(help="JSONL: question, correct and steps per arm")] = None,
    log: Annotated[
        Path | None,
        typer.Option(help="logged decisions with rewards, as `ragbandit data import` reads them"),
    ] = None,
    format_: Annotated[str | None, typer.Option("--format", help="of the log; default: by its name")] = None,
    folds: Annotated[int, typer.Option(min=2, help="parts of the questions, each held out once")] = 5,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="leave out log rows that cannot be used")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="judge only; learn nothing")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the policy learn a table or a log before the first user; say what it does on questions held out.

    The rows go to the end of the ledger policy.label; duplicates are skipped.
    """
    if (table is None) == (log is None):
        raise InvalidInput("give one of --table and --log", field="table", remedy="one file at a time")
    with opened(config, make=True) as (settings, ledger):
        policy = learner_of(policy_of(settings))
        check_policy(policy, name=settings.policy.name)
        with bars(errors) as progress:
            progress("loading the encoder", 0, 0)
            encoder = make_encoder(settings.encoder, ledger=ledger)
            common: dict[str, Any] = {"settings": settings, "progress": progress}
            if table is not None:
                rows = read_table(table)
                material = table_material(rows, source=str(table), encoder=encoder, now=time.time(), **common)
            else:
                assert log is not None
                kind = format_of(log, format=format_)
                read = open_log(log, format=kind, config=settings, mixed_arms=True, skip_bad=skip_bad).read(progress)
                for skipped in read.skipped[:5]:
                    errors.print(escape(f"left out: {skipped.where} {skipped.reason}"), soft_wrap=True, highlight=False)
                needs = "features" in policy.needs
                source = str(log)
                material = log_material(
                    read.rows, source=source, origin=kind, encoder=encoder, needs_features=needs, **common
                )
            notes = _arm_notes(material, settings=settings)
            judged = held_out(material, policy=policy, name=settings.policy.name, folds=folds, **common)
            entered = None if dry_run else enter(material, ledger=ledger, encoder_hash=encoder.hash, **common)
    facts = {} if entered is None else asdict(entered)
    if as_json:
        print_json({"held_out": judged.as_json(), **facts, "label": settings.policy.label, "notes": notes})
        return
    print_held_out(judged, material=material, console=console)
    for key, value in {**facts, **({"label": settings.policy.label} if facts else {})}.items():
        _print(f"{key}: {'the running learner makes it' if value is None else value}")
    for note in notes:
        _print(f"note: {note}")
    _print("nothing was learned: --dry-run" if dry_run else "next: ragbandit up; ragbandit status says `learned`")


def _arm_notes(material: WarmRows, *, settings: Settings) -> list[str]:
    """A word on arms that are on one side only. Raises InvalidInput where no arm is on both."""
    configured, known = set(settings.arms), set(material.arms)
    if not configured & known:
        raise InvalidInput(
            f"has the arms {', '.join(material.arms)}, the configuration {', '.join(settings.arms)}",
            field=f"{material.source} arms",
            remedy="name the arms of the file as those that will serve",
        )
    notes = []
    if (incumbent := settings.policy.incumbent) is not None:
        notes.append(f"served, it is held back to {incumbent} as far as policy.harm asks, which is not in the table")
    if material.encoded:
        notes.append(f"the features of {material.encoded} rows were made with the configured encoder")
    if cold := [arm for arm in settings.arms if arm not in known]:
        notes.append(f"nothing is known of {', '.join(cold)}: explored as on the first day")
    if unused := [arm for arm in material.arms if arm not in configured]:
        notes.append(f"learned and never drawn, since not configured: {', '.join(unused)}")
    return notes


def print_held_out(result: HeldOut, *, material: WarmRows, console: Console) -> None:
    """The policy and always each arm, on the questions held out."""
    steps = all(row.reward.terms == {"steps": 1.0} for row in material.rows)
    table = Printed(
        f"{result.questions:,} questions held out", "reward", "gain of the policy", "quality",
        "steps" if steps else "cost", "arms %",
    )  # fmt: skip
    for column in table.columns[1:]:
        column.justify = "right"
        column.no_wrap = True
    for one in result.standings:
        table.add_row(
            escape(one.name + (" after this" if one.gain is None else "")),
            _told(one.reward),
            "" if one.gain is None else _told(one.gain, sign="+"),
            _told(one.quality, whole=False),
            _told(one.cost, whole=False),
            "/".join(f"{100 * share:.0f}" for share in one.shares.values()),
        )
    Console(file=console.file, width=max(console.width, 110), emoji=False).print(table)
    _print(f"arms %: {' / '.join(result.standings[0].shares)}; in brackets: 95 % intervals")
    by = (
        "the outcome of every arm is known"
        if result.by == "every arm"
        else "doubly robust estimates from the logged draws, see docs/replay.md"
    )
    _print(
        f"each question was asked of a policy that had learned the other {result.folds - 1} of {result.folds} parts; "
        f"{by}"
    )
    if result.price is not None:
        _print(f"{implied(result.price)}\n{proposal(result.price)}")
    for note in result.notes:
        _print(f"note: {note}")


def _told(value: EstimateWithInterval, *, sign: str = "", whole: bool = True) -> str:
    text = f"{value.value:{sign}.3f}"
    if not whole or value.low is None or value.high is None:
        return text
    return f"{text} ({value.low:{sign}.3f} to {value.high:{sign}.3f})"


def _print(line: Any) -> None:
    console.print(escape(str(line)), soft_wrap=True, highlight=False)


def simulate_verb(
    *,
    table: Annotated[Path, typer.Option(help="JSONL: question, correct and steps per arm")],
    policy: Annotated[list[str], typer.Option(help="NAME[,NAME...]; may be repeated")],
    test: Annotated[Path | None, typer.Option(help="predict these rows; learn all of the table")] = None,
    folds: Annotated[int | None, typer.Option(help="without --test: parts of the table; default 5")] = None,
    weights: Annotated[
        str | None,
        typer.Option("--lambda", help="weight of cost while learning, X[,X...]; default reward.weight"),
    ] = None,
    seeds: Annotated[int, typer.Option(help="orders of the table and draws")] = 5,
    total: Annotated[int | None, typer.Option(help="questions in EM's denominator, those not in the table too")] = None,
    param: Annotated[list[str] | None, typer.Option(help="NAME.KEY=VALUE; may be repeated")] = None,
    incumbent: Annotated[
        str | None, typer.Option(help="ARM that the rewards while learning are compared with; default best fixed")
    ] = None,
    warm: Annotated[
        int, typer.Option(help="rows of every pass that are learned before it, with the outcomes of all arms")
    ] = 0,
    labelled: Annotated[
        float, typer.Option(help="chance that a decision's outcome is learned, above 0 and at most 1")
    ] = 1.0,
    plot: Annotated[Path | None, typer.Option(help="draw the quality-cost frontier as PNG")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="processes; default one per core")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learn from a full-information table as live traffic would, then judge on rows not learned."""
    settings = configuration.load(config).settings
    check_fallback(settings)
    if plot is not None:
        check_png(plot)
    if test is not None and folds is not None:
        raise InvalidInput("--test and --folds exclude each other", field="folds", remedy="give one of them")
    policies = parse_policies(policy, params=param or [], settings=settings)
    with bars(errors) as progress:
        rows = simulate(
            read_table(table),
            policies=policies,
            test=None if test is None else read_table(test),
            folds=5 if folds is None else folds,
            weights=None if weights is None else parse_weights(weights),
            seeds=seeds,
            total=total,
            settings=settings,
            encoder=lambda: make_encoder(settings.encoder),
            incumbent=incumbent,
            warm=warm,
            labelled=labelled,
            jobs=jobs or cores(),
            progress=progress,
        )
    if as_json:
        print_json([row.as_json() for row in rows])
    else:
        print_training(rows, console=console)
    if plot is not None:  # last: a figure that cannot be written must not cost the table
        plot_frontier(rows, path=plot)

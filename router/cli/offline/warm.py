"""`ragbandit policy warm`: a policy learns labelled questions or a log before the first user comes."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Printed

from ragbandit.router.cli.console import ConfigOption, JsonOption, bars, console, errors, print_json
from ragbandit.router.cli.store import opened
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.learning.examples import policy_of
from ragbandit.router.learning.monitoring.price import implied, proposal
from ragbandit.router.offline.logs import format_of
from ragbandit.router.offline.logs.tables import read_table
from ragbandit.router.offline.replay.opening import open_log
from ragbandit.router.offline.replay.results import EstimateWithInterval
from ragbandit.router.offline.types import Progress
from ragbandit.router.offline.warm.entering import enter
from ragbandit.router.offline.warm.held_out import HeldOut, held_out
from ragbandit.router.offline.warm.material import WarmRows, check_policy, learner_of, log_material, table_material
from ragbandit.router.policies.base import Policy
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.shared.errors import InvalidInput


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
            if table is not None:
                material = _of_table(table, settings=settings, encoder=encoder, progress=progress)
            else:
                assert log is not None
                material = _of_log(
                    log,
                    format_=format_,
                    skip_bad=skip_bad,
                    settings=settings,
                    encoder=encoder,
                    policy=policy,
                    progress=progress,
                )
            notes = _arm_notes(material, settings=settings)
            judged = held_out(
                material,
                policy=policy,
                name=settings.policy.name,
                settings=settings,
                folds=folds,
                progress=progress,
            )
            entered = None
            if not dry_run:
                entered = enter(
                    material, ledger=ledger, settings=settings, encoder_hash=encoder.hash, progress=progress
                )
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


def _of_table(path: Path, *, settings: Settings, encoder: Encoder, progress: Progress) -> WarmRows:
    return table_material(
        read_table(path),
        source=str(path),
        settings=settings,
        encoder=encoder,
        now=time.time(),
        progress=progress,
    )


def _of_log(
    path: Path,
    *,
    format_: str | None,
    skip_bad: bool,
    settings: Settings,
    encoder: Encoder,
    policy: Policy,
    progress: Progress,
) -> WarmRows:
    log_format = format_of(path, format=format_)
    log = open_log(path, format=log_format, config=settings, mixed_arms=True, skip_bad=skip_bad).read(progress)
    for skipped in log.skipped[:5]:
        errors.print(escape(f"left out: {skipped.where} {skipped.reason}"), soft_wrap=True, highlight=False)
    return log_material(
        log.rows,
        source=str(path),
        origin=log_format,
        settings=settings,
        encoder=encoder,
        needs_features="features" in policy.needs,
        progress=progress,
    )


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

"""Verb `explain`: one decision, told in text; read from the database, without a running service."""

import json
from collections.abc import Iterable, Iterator
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from ragbandit.router.api.schemas.replies import explanation_json
from ragbandit.router.api.schemas.responses import plain
from ragbandit.router.cli.console import (
    ConfigOption,
    JsonOption,
    LabelOption,
    console,
    print_json,
)
from ragbandit.router.cli.store import opened
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.serving.explanations import explain as explanations
from ragbandit.router.serving.explanations.values import ArmChance, Explanation, StepShown
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.shared.formats import moment, number, printable
from ragbandit.shared.types import Feedback, Reward

#: characters of a text that are shown
_LONGEST: Final = 400
#: what is left of texts -> what is said of it
_TEXTS: Final = {
    "sha256": "(kept as its sha256)",
    "none": "(not kept)",
    "erased": "(erased)",
    "erased with features": "(erased, and its features too)",
}


def explain(
    decision_id: Annotated[str, typer.Argument(metavar="ID", help="id of the decision")],
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Why a decision was made and what came of it, from its question to its place in the ledger.

    Read from the database, and from the archive where it has moved there. --json prints what the service has at
    /v1/decisions/ID/explanation.
    """
    with opened(config, label=label) as (settings, ledger):
        store = DecisionStore(ledger.database, label=ledger.label)
        explained = explanations.explain(store, decision_id, rule=closing_rule(settings.learning), archive=True)
        if as_json:
            print_json(plain(explanation_json(explained)))
            return
        _asked(explained)
        _why(explained)
        _arms(explained)
        _near(explained)
        _answer(explained)
        _came_of_it(explained)


def _print(text: str, *, style: str = "") -> None:
    """A line; texts of others in it are made harmless, and are no markup."""
    console.print(Text(printable(text), style=style), highlight=False)


def _head(text: str) -> None:
    console.print()
    _print(text, style="bold")


def _table(*columns: str, rows: Iterable[Iterable[str]]) -> None:
    table = Table(*columns, box=None, pad_edge=False, show_header=any(columns))
    for column in table.columns:
        column.overflow = "fold"  # names and ids are read whole
        column.no_wrap = column.header == "arm"
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)


def _short(text: str, *, most: int = _LONGEST) -> str:
    return text if len(text) <= most else f"{text[:most]} [...]"


def _asked(explained: Explanation) -> None:
    decision = explained.record.decision
    query = decision.query
    texts = _TEXTS.get(explained.texts)
    rows = [("decision", decision.id), ("made", moment(decision.made_at))]
    rows += [("question", texts or _short(query.text))]
    rows += [("asked", _short(query.asked))] if query.asked is not None else []
    rows += [("context", _short(json.dumps(dict(query.context), ensure_ascii=False)))] if query.context else []
    rows += [("tenant", query.tenant)]
    rows += [("session", query.session)] if query.session is not None else []
    rows += [("key", query.api_key)] if query.api_key is not None else []
    rows += [("run by", decision.run_by)]
    rows += [("read from", "the archive")] if explained.place == "archive" else []
    _table("", "", rows=rows)


def _why(explained: Explanation) -> None:
    _head(f"Why {explained.record.decision.arm}")
    for reason in explained.reasons:
        _print(f"- {_short(reason)}")
    shown = explained.snapshot
    learned = "" if shown.learned is None else f", trained on {shown.learned} updates of {shown.label}"
    _print(f"- Decided by the snapshot {shown.version} of {shown.algorithm or 'a policy not known here'}{learned}.")
    for name, value in explained.facts.items():
        text = f"{value:.6g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
        _print(f"- The policy noted {name}: {_short(text)}")


def _arms(explained: Explanation) -> None:
    _head("Arms")
    has_trial = any(arm.candidate is not None for arm in explained.arms)
    columns = ["", "arm", "probability", "made of", "score", "quality", "cost", "drawn for u in"]
    columns += ["champion", "candidate"] if has_trial else []
    _table(*columns, rows=(_arm_row(arm, has_trial=has_trial) for arm in explained.arms))
    draw = explained.draw
    weighed = draw.weight is not None and explained.snapshot.learned != 0  # the first update brings the weight
    weight = f"; score = quality - {draw.weight:g} * cost" if weighed else ""
    _print(f"u = {draw.u:.9f} from seed {draw.seed}; floor {draw.floor:g}{weight}")


def _arm_row(arm: ArmChance, *, has_trial: bool) -> list[str]:
    parts = ", ".join(f"{name.replace('_', ' ')} {part:.4g}" for name, part in arm.parts.items())
    cells = ["->" if arm.drawn else "", arm.arm, f"{arm.probability:.4f}", parts]
    cells += [number(arm.score, 4), number(arm.quality, 4), number(arm.cost, 4), f"[{arm.low:.4f}, {arm.high:.4f})"]
    return cells + ([number(arm.champion, 4), number(arm.candidate, 4)] if has_trial else [])


def _near(explained: Explanation) -> None:
    near = explained.neighbours
    _head("Nearest questions that it had learned")
    if near.found:
        _table(
            "cosine",
            "arm",
            "reward",
            "question",
            rows=(
                (f"{one.similarity:.3f}", one.arm, number(one.reward), _short(one.question or "(no text)", most=100))
                for one in near.found
            ),
        )
        _print(f"of the {near.compared} newest that can be compared")
    if near.note is not None:
        _print(f"{near.note[0].upper()}{near.note[1:]}.")


def _answer(explained: Explanation) -> None:
    outcome = explained.record.outcome
    if outcome is None:
        return
    _head("Answer")
    _table("", "", rows=_ending(explained))
    for step in explained.steps:
        for line in _step_lines(step):
            _print(line)


def _ending(explained: Explanation) -> Iterator[tuple[str, str]]:
    outcome = explained.record.outcome
    assert outcome is not None
    cost = outcome.cost
    yield "status", f"{outcome.status}{f' ({outcome.stop_reason})' if outcome.stop_reason else ''}"
    if outcome.answer:
        yield "answer", _short(outcome.answer)
    if outcome.error:
        yield "error", _short(outcome.error)
    spent = (
        f"{outcome.steps:g} steps, {cost.retriever_calls} searches, {cost.passages} passages, {cost.llm_calls} calls"
    )
    spent += f" of the model, {cost.prompt_tokens} + {cost.completion_tokens} tokens, {cost.seconds_total:.3g} s"
    yield "cost", f"{spent}, ${cost.dollars:g}"


def _step_lines(step: StepShown) -> Iterator[str]:
    took = "" if step.seconds is None else f" ({step.seconds:.3g} s)"
    match step.kind:
        case "round":
            yield f"round {step.name}"
        case "retrieved":
            yield f"  searched{took}: {_short(step.text, most=100)}"
            for one in step.passages:
                yield f"    {one.score:.4g}  {one.id}  {_short(one.title, most=80)}"
        case "generated":
            yield f"  wrote, {step.name}{took}: {_short(step.text, most=200)}"
        case "branch":
            yield f"  branch {step.name}: {_short(step.text, most=200)}"
        case "call_failed":
            yield f"  failed, {step.name}{took}: {_short(step.text, most=200)}"


def _came_of_it(explained: Explanation) -> None:
    _head("Feedback and reward")
    record = explained.record
    if record.feedback:
        _table("received", "kind", "value", "source", "", rows=(_told(explained, one) for one in record.feedback))
    if record.reward is not None:
        _print(_reward(record.reward))
        for line in explained.bill:
            _print(f"  {line.name}: {line.amount:g} * {line.price:g} = {line.cost:g}")
    _print(explained.progress)


def _told(explained: Explanation, one: Feedback) -> tuple[str, ...]:
    value = "taken back" if one.value is None and one.kind != "event" else _short(json.dumps(one.value), most=100)
    marks = [
        mark for mark, holds in (("late", one.id in explained.record.late), ("held", one.id in explained.held)) if holds
    ]
    kind = one.kind if one.event is None else f"{one.kind} {one.event}"
    rater = "" if one.rater is None else f" {one.rater}"
    return moment(one.received_at), kind, value, f"{one.source}{rater}", ", ".join(marks)


def _reward(reward: Reward) -> str:
    text = f"reward {reward.value:.4g} = quality {reward.quality:.4g} - {reward.weight:g} * cost {reward.cost:.4g}"
    text += f", cut to [{reward.minimum:g}, {reward.maximum:g}]" if reward.clipped else ""
    if reward.raw_quality is not None:
        text += f"; the quality was calibrated from {reward.raw_quality:.4g}"
    if reward.sample_weight != 1.0:
        text += f"; it counts as {reward.sample_weight:g} rows"
    return text + (f"; judged by {reward.judged_by}" if reward.judged_by else "")

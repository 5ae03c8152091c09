"""The screen and the page of rows of routers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal

from ragbandit.additions.evaluation.routers.online import OnlineRow
from ragbandit.additions.evaluation.routers.routing_table import RoutingTable
from ragbandit.additions.evaluation.routers.rows import ORACLE, Estimate, RouterRow
from ragbandit.router.comparison.assessment import (
    Assessment,
    FrontierPoint,
    LearningCurve,
    LineChart,
    NumberTable,
    Plane,
)
from ragbandit.router.offline.labels import confusion_table
from ragbandit.router.offline.logs.table_values import MEASURES
from ragbandit.shared.texts.formats import NOTHING, counted, decimal
from ragbandit.shared.types import ArmName

#: mean -> (head of its column as in the papers, factor, digits)
HEADS: Final[Mapping[str, tuple[str, float, int]]] = {
    "correct": ("right %", 100.0, 1),
    **{name: (f"{head} %", 100.0, 1) for name, head in MEASURES.items()},
    "steps": ("Step", 1.0, 2),
    "time": ("Time", 1.0, 2),
    "seconds": ("seconds", 1.0, 2),
    "passages": ("passages", 1.0, 2),
    "dollars": ("dollars", 1.0, 5),
    "reward": ("reward", 1.0, 3),
    "regret": ("regret", 1.0, 3),
}

#: largest share of the oracle's gain that is shown: if a share is larger, the oracle gains almost nothing
_MOST_SHARE: Final = 10.0


def routers_assessment(
    rows: Sequence[RouterRow],
    *,
    outcomes: RoutingTable,
    online: Sequence[OnlineRow] = (),
    notes: Sequence[str],
    full: bool,
) -> Assessment:
    """All numbers of these rows. full: False for the tables that fit on a screen."""
    policies = [row for row in rows if row.kind == "policy"] or [row for row in rows if row.kind == "first pass"]
    measure = outcomes.measure
    best = max(policies or rows, key=lambda row: row.all["reward"].mean)
    arm = max((row for row in rows if row.kind == "arm"), key=lambda row: row.all["reward"].mean)
    gain = best.all["reward"].mean - arm.all["reward"].mean
    unit = "steps" if "steps" in best.all and _have_equal_means(best, "steps", "cost") else "cost"
    shown = [row for row in rows if row.kind != "first pass" or row in policies]
    return Assessment(
        title=f"Routers on {counted(len(outcomes.table.rows), 'question')} with the outcome of every arm",
        sentence=f"{_quality_text(best, measure=measure)}; always {_quality_text(arm, measure=measure)}",
        number=decimal(gain, 3, sign="+"),
        about=f"reward a question, {best.name} minus the best fixed arm",
        frontier=tuple(_point(row, quality=measure, cost="cost") for row in shown),
        planes=tuple(_planes(shown, time_one=outcomes.time_one)),
        curves=tuple(_curves(online)),
        charts=tuple(_regrets(online)),
        tables=(*_online_table(online), *_tables(rows, outcomes=outcomes, full=full)),
        notes=tuple(notes),
        cost_unit=unit,
    )


def _curves(online: Sequence[OnlineRow]) -> Iterator[LearningCurve]:
    best = next((row.name for row in online if row.kind == "arm"), "")
    for row in online:
        if row.curve is not None:
            yield LearningCurve(
                name=row.name,
                questions=row.curve.questions,
                policy=row.curve.reward,
                fixed=row.curve.fixed,
                rated=row.curve.questions,
                break_even=row.break_even,
                against=f"always {best}",
            )


def _regrets(online: Sequence[OnlineRow]) -> Iterator[LineChart]:
    """Yield the regret so far of each policy and of always the best arm, if there is a policy."""
    drawn = {row.name: row.curve for row in online if row.curve is not None}
    best = next((row.name for row in online if row.kind == "arm"), "")
    if not drawn:
        return
    first = next(iter(drawn.values()))
    yield LineChart(
        title="Regret so far, against each question's best arm",
        places="Questions",
        at=first.questions,
        lines={**{name: curve.regret for name, curve in drawn.items()}, f"always {best}": first.fixed_regret},
        baseline=f"always {best}",
        note="Less is better. A question's best arm is known only afterwards, so that every router has some regret.",
    )


def _online_table(online: Sequence[OnlineRow]) -> Iterator[NumberTable]:
    if not online:
        return
    best = next(row.name for row in online if row.kind == "arm")
    has_dollars = any(row.quality_per_dollar is not None for row in online)
    lines = []
    for row in online:
        per_dollar = [_optional(row.quality_per_dollar, digits=1)] if has_dollars else []
        ahead = f"{row.break_even:,}" if row.break_even is not None else NOTHING
        sums = [
            _mean_and_error(row.reward, factor=1.0, digits=1),
            _mean_and_error(row.above_best, factor=1.0, digits=1, sign="+"),
        ]
        lines.append((row.name, *sums, _mean_and_error(row.regret, factor=1.0, digits=1), *per_dollar, ahead))
    heads = ("reward", f"above always {best}", "regret", *(["right per dollar"] if has_dollars else []), "ahead from")
    title = f"While learning: sums over a pass of {counted(online[0].questions, 'question')}"
    yield NumberTable(title=title, columns=("router", *heads), rows=tuple(lines))


def _optional(value: Estimate | None, *, digits: int) -> str:
    return NOTHING if value is None else _mean_and_error(value, factor=1.0, digits=digits)


def _have_equal_means(row: RouterRow, first: str, second: str) -> bool:
    return abs(row.all[first].mean - row.all[second].mean) < 1e-9


def _quality_text(row: RouterRow, *, measure: str) -> str:
    steps = f" with {decimal(row.all['steps'].mean, 2)} steps a question" if "steps" in row.all else ""
    return f"{row.label}: {decimal(100.0 * row.all[measure].mean, 1)} % {HEADS[measure][0].removesuffix(' %')}{steps}"


def _point(row: RouterRow, *, quality: str, cost: str) -> FrontierPoint:
    kind: Literal["arm", "candidate"] = "arm" if row.kind == "arm" else "candidate"
    return FrontierPoint(name=row.name, quality=row.all[quality].mean, cost=row.all[cost].mean, kind=kind)


def _planes(rows: Sequence[RouterRow], *, time_one: ArmName | None) -> Iterator[Plane]:
    """Yield F1 against time, the figure of Adaptive-RAG, if the table has both."""
    if all({"f1", "time"} <= row.all.keys() for row in rows):
        points = tuple(_point(row, quality="f1", cost="time") for row in rows)
        yield Plane(title="F1 against time per question", quality="F1", cost=f"Time, 1 is {time_one}", points=points)


def _tables(rows: Sequence[RouterRow], *, outcomes: RoutingTable, full: bool) -> Iterator[NumberTable]:
    datasets = list(outcomes.datasets)
    yield _means_table(rows, title="Means over all questions", of=lambda row: row.all, above=True)
    if len(datasets) > 1:
        title = f"Means of the means of {len(datasets)} data sets"
        yield _means_table(rows, title=title, of=lambda row: row.mean_of_datasets)
        names = [name for name in HEADS if name in rows[0].all]
        for name in names if full else [name for name in names if name in (outcomes.measure, "steps")]:
            yield _dataset_table(rows, name=name, datasets=datasets)
    known = [row for row in rows if row.kind != "first pass" and row.name != ORACLE]
    yield _label_table(known, arms=[str(arm) for arm in outcomes.arms])
    if full:
        yield _chosen_table(rows)
        labels = {row.name: row.confusion.labels for row in known if row.kind == "policy"}
        yield confusion_table(labels, arms=outcomes.arms)


def _means_table(
    rows: Sequence[RouterRow], *, title: str, of: Callable[[RouterRow], Mapping[str, Estimate]], above: bool = False
) -> NumberTable:
    names = [name for name in HEADS if name in of(rows[0])]
    has_dollars = above and any(row.quality_per_dollar is not None for row in rows)
    heads = [HEADS[name][0] for name in names] + (["right per dollar"] if has_dollars else [])
    heads += ["above mixture", "of oracle"] if above else []
    lines = []
    for row in rows:
        cells = [_cell(of(row)[name], name=name) for name in names]
        if has_dollars:
            cells.append(_optional(row.quality_per_dollar, digits=1))
        if above:
            share = row.oracle_share
            cells += [_mean_and_error(row.above_mixture, factor=100.0, digits=1, sign="+")]
            cells += [NOTHING if share is None or abs(share) > _MOST_SHARE else f"{decimal(100.0 * share, 0)} %"]
        lines.append((row.label, *cells))
    return NumberTable(title=title, columns=("router", *heads), rows=tuple(lines))


def _dataset_table(rows: Sequence[RouterRow], *, name: str, datasets: Sequence[str]) -> NumberTable:
    lines = [
        (
            row.label,
            *(_cell(row.by_dataset[dataset][name], name=name) for dataset in datasets),
            _cell(row.mean_of_datasets[name], name=name),
        )
        for row in rows
    ]
    return NumberTable(title=f"{HEADS[name][0]} by data set", columns=("router", *datasets, "mean"), rows=tuple(lines))


def _label_table(rows: Sequence[RouterRow], *, arms: Sequence[str]) -> NumberTable:
    """A table of accuracies: the share of the questions with a label for which the label was chosen."""
    heads = [f"{arm} ({rows[0].confusion.labels[arm].questions})" for arm in arms]
    lines = []
    for row in rows:
        chosen = [{str(name): share for name, share in row.confusion.labels[arm].chosen.items()} for arm in arms]
        cells = [_percent(shares.get(arm)) for arm, shares in zip(arms, chosen, strict=True)]
        lines.append((row.label, *cells, _percent(row.confusion.accuracy)))
    title = "Accuracy by label in %: the label of a question is its cheapest right arm"
    return NumberTable(title=title, columns=("router", *heads, "all"), rows=tuple(lines))


def _chosen_table(rows: Sequence[RouterRow]) -> NumberTable:
    lines = []
    for row in rows:
        cells = []
        for arm, share in row.arms.items():
            seconds = row.arm_seconds[arm]
            cells.append(_percent(share) + ("" if seconds is None else f", {decimal(seconds, 2)} s"))
        lines.append((row.label, *cells))
    title = "Share of the questions that each arm gets in %, and their mean seconds"
    return NumberTable(title=title, columns=("router", *map(str, rows[0].arms)), rows=tuple(lines))


def _percent(share: float | None) -> str:
    return NOTHING if share is None else decimal(100.0 * share, 1)


def _cell(value: Estimate, *, name: str) -> str:
    _, factor, digits = HEADS[name]
    return _mean_and_error(value, factor=factor, digits=digits)


def _mean_and_error(value: Estimate, *, factor: float, digits: int, sign: str = "") -> str:
    text = decimal(factor * value.mean, digits, sign=sign)
    return text if value.error is None else f"{text} ± {decimal(factor * value.error, digits)}"

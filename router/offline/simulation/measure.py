"""Arithmetic on a full-information table: points of quality and cost, the mixture line, oracles, and learning passes.

`correct` and `steps` of a table have shape (n, arms). `shares`, the probability of each arm for each question, too.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from rich.console import Console

from ragbandit.router.comparison import assessment as shown
from ragbandit.router.comparison.terminal import print_table
from ragbandit.router.offline.estimation import Choices
from ragbandit.router.offline.logs.tables import LabelledTable
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.formats import counted, decimal
from ragbandit.shared.types import ArmName, Matrix, Vector

if TYPE_CHECKING:
    from ragbandit.router.offline.simulation import Simulated
    from ragbandit.router.offline.simulation.run import Played


#: number of questions in the shortest prefix of a pass whose ratio of rewards counts: in shorter prefixes, a single
#: answer changes the ratio too much
LEAST_PREFIX: Final = 100
#: maximum number of points of a learning curve
CURVE_POINTS: Final = 60
#: the two arms that papers on adaptive retrieval mix
_PAPERS: Final = (ArmName("single_step"), ArmName("multi_step"))


#: prefix of the names of fixed arms
_ALWAYS: Final = "always-"
_LABELS: Final = {
    "confusion": "by cheapest right arm",
    "by_hops": "by hops of the question",
    "by_dataset": "by data set",
}

#: (exact match in percent, mean steps per question of the table)
FrontierPoint = tuple[float, float]


def point_of(shares: Matrix, *, table: LabelledTable, total: int) -> FrontierPoint:
    """Exact match and steps of these shares: EM = 100 * expected sum of `correct` / total; steps = expected mean.

    total: number of questions in the denominator of EM. Questions that the table lacks count as wrong under every arm.
    """
    em = 100.0 * float((shares * table.correct).sum()) / total
    return em, float((shares * table.steps).sum()) / len(table.rows)


def line_arms(table: LabelledTable) -> tuple[int, int]:
    """Indices of the two arms that are mixed: single_step and multi_step, else the cheapest and the most expensive."""
    if all(name in table.arms for name in _PAPERS):
        return table.arms.index(_PAPERS[0]), table.arms.index(_PAPERS[1])
    means = table.steps.mean(axis=0)
    return int(means.argmin()), len(means) - 1 - int(means[::-1].argmax())


def above_line(point: FrontierPoint, *, ends: tuple[FrontierPoint, FrontierPoint]) -> float:
    """Exact match of the point, minus that of the line through two fixed arms (`ends`) at the same number of steps."""
    (em, steps), ((cheap, low), (expensive, high)) = point, ends
    if high == low:  # without a difference in steps, the better arm replaces the line
        return em - max(cheap, expensive)
    return em - (cheap + (steps - low) / (high - low) * (expensive - cheap))


def one_hot(choices: Choices, *, arms: int) -> Matrix:
    return np.eye(arms, dtype=np.float64)[choices]


def greedy(values: Matrix, *, cost: Matrix) -> Choices:
    """The arm with the highest value in each row, shape (n,). Ties go to the cheapest arm, then to the first."""
    best = values == values.max(axis=1, keepdims=True)
    choices: Choices = np.where(best, cost, np.inf).argmin(axis=1)
    return choices


def cheapest_right(table: LabelledTable) -> Choices:
    """The oracle of the papers: the cheapest of the best arms, or the cheapest arm if no arm is right."""
    return greedy(table.correct, cost=table.steps)


def right_arms(table: LabelledTable) -> list[ArmName | None]:
    some = table.correct.max(axis=1) > 0.0
    return [table.arms[arm] if right else None for arm, right in zip(cheapest_right(table), some, strict=True)]


def arm_seconds(shares: Matrix, *, table: LabelledTable) -> dict[ArmName, float | None] | None:
    """Mean seconds of the questions that each arm gets; None for an arm without questions, or a table without times."""
    if table.seconds is None:
        return None
    sums, given = (shares * table.seconds).sum(axis=0), shares.sum(axis=0)
    pairs = zip(table.arms, sums.tolist(), given.tolist(), strict=True)
    return {arm: total / count if count > 0.0 else None for arm, total, count in pairs}


def rewards_of(table: LabelledTable, *, weight: float, price: float, bounds: tuple[float, float]) -> Matrix:
    """Reward of every arm, shape (n, arms), as `ragbandit.router.learning.reward` computes it."""
    return np.clip(table.correct - weight * (price * table.steps), *bounds)


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns (mean, its standard error over the seeds; None for one seed)."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, float(np.std(values, ddof=1)) / math.sqrt(len(values))


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstPass:
    """Mean rewards per question of a policy while it learned, over all passes, compared with each fixed arm."""

    incumbent: ArmName
    best_fixed: ArmName
    reward: float
    reward_se: float | None
    always: Mapping[ArmName, float]  #: reward of each fixed arm
    oracle: float  #: reward if the best arm answers each question
    passes: int
    questions: int  #: number of questions in the shortest pass
    labels: float  #: mean number of decisions per pass whose outcome was learned
    #: number of questions after which the sum of rewards stays at least the incumbent's, in the median pass; None if
    #: fewer than half of the passes break even
    break_even: int | None
    break_even_share: float  #: share of the passes that break even
    #: smallest ratio of the policy's sum of rewards to the incumbent's sum, over all prefixes of a pass that have at
    #: least LEAST_PREFIX questions; None if a sum of the incumbent is not above 0
    worst_prefix: float | None
    worst_after: int | None  #: number of questions in the prefix with the smallest ratio
    #: share of passes with such a prefix in which the policy's sum is below (1 - harm) times the incumbent's sum
    harmed: float


def first_pass(
    seeds: "Sequence[Sequence[Played]]", *, arms: Sequence[ArmName], rewards: Matrix, incumbent: str | None, harm: float
) -> FirstPass:
    """Summarise the passes of a policy, given as a sequence of runs per seed.

    rewards: shape (n, arms), of the learned table. incumbent: None for the arm with the highest mean reward.
    """
    runs = [run for folds in seeds for run in folds]
    known = [rewards[run.order] for run in runs]  # a pass each: (questions, arms)
    column = int(rewards.mean(axis=0).argmax()) if incumbent is None else list(arms).index(ArmName(incumbent))
    always = {arm: _mean([one[:, place] for one in known]) for place, arm in enumerate(arms)}
    sums = [(np.cumsum(run.earned), np.cumsum(one[:, column])) for run, one in zip(runs, known, strict=True)]
    even = sorted(one for one in (_passed_for_good(ours - theirs) for ours, theirs in sums) if one is not None)
    middle = (len(runs) + 1) // 2  # the lower median
    questions = min(len(run.order) for run in runs)
    first = min(LEAST_PREFIX, questions)
    tails = [(ours[first - 1 :], theirs[first - 1 :]) for ours, theirs in sums]
    ratios = [ours / theirs for ours, theirs in tails] if all((theirs > 0.0).all() for _, theirs in tails) else []
    worst, after = min(((float(one.min()), int(one.argmin()) + first) for one in ratios), default=(None, None))
    reward, reward_se = mean_and_error([_mean([run.earned for run in folds]) for folds in seeds])
    return FirstPass(
        incumbent=arms[column],
        best_fixed=max(arms, key=lambda arm: always[arm]),
        reward=reward,
        reward_se=reward_se,
        always=always,
        oracle=_mean([one.max(axis=1) for one in known]),
        passes=len(runs),
        questions=questions,
        labels=math.fsum(run.labels for run in runs) / len(runs),
        break_even=even[middle - 1] if len(even) >= middle else None,
        break_even_share=len(even) / len(runs),
        worst_prefix=worst,
        worst_after=after,
        harmed=sum(float((ours - (1.0 - harm) * theirs).min()) < -1e-9 for ours, theirs in tails) / len(runs),
    )


def learning_curve(
    name: str, seeds: "Sequence[Sequence[Played]]", *, arms: Sequence[ArmName], rewards: Matrix, summary: FirstPass
) -> shown.LearningCurve:
    """The mean rewards so far of the passes that `summary` summarises, at up to CURVE_POINTS numbers of questions."""
    runs = [run for folds in seeds for run in folds]
    at = np.unique(np.linspace(min(10, summary.questions), summary.questions, CURVE_POINTS).astype(np.intp))
    column = list(arms).index(summary.incumbent)
    sums = [
        np.mean([np.cumsum(values)[at - 1] for values in way], axis=0)
        for way in ([run.earned for run in runs], [rewards[run.order, column] for run in runs])
    ]
    policy, fixed = ((total / at).tolist() for total in sums)
    rated = np.round(at * (summary.labels / summary.questions)).astype(int).tolist()
    questions, even = at.tolist(), summary.break_even
    return shown.LearningCurve(name=name, questions=questions, policy=policy, fixed=fixed, rated=rated, break_even=even)


def _mean(parts: Sequence[Vector]) -> float:
    return math.fsum(float(v) for part in parts for v in part) / max(1, sum(map(len, parts)))


def _passed_for_good(ahead: Vector) -> int | None:
    """Number of questions after which no sum is below 0; None if the last sum is below 0."""
    below = np.flatnonzero(ahead < -1e-9)  # not 0: equal rewards that are summed in another order differ by rounding
    first = int(below[-1]) + 2 if len(below) else 1
    return first if first <= len(ahead) else None


def print_training(rows: Sequence["Simulated"], *, console: Console) -> None:
    for table in _tables(rows):
        print_table(table, console=console)
    for note in footnotes(rows):
        console.print(note, soft_wrap=True, highlight=False, markup=False)


def assessment(rows: Sequence["Simulated"]) -> shown.Assessment:
    """What the page of a simulation shows: quality against steps, of each policy and each fixed arm."""
    best = max((row for row in rows if row.seeds), key=lambda row: row.em, default=rows[0])
    fixed = max((row for row in rows if row.policy.startswith(_ALWAYS)), key=lambda row: row.em, default=rows[0])
    answers = (
        f"{row.policy} answers {_pair(row.em, error=row.em_se)} % exactly with {row.steps:.2f} steps a question"
        for row in (best, fixed)
    )
    return shown.Assessment(
        title=f"Simulation: {best.n:,} questions with the outcome of every arm",
        sentence="; ".join(answers),
        number=f"{best.em:.1f} %",
        about=f"exact match of {best.policy}, after learning from the outcomes of the arms that it drew",
        frontier=tuple(
            shown.FrontierPoint(name=" ".join(_named(row)).strip(), quality=row.em / 100.0, cost=row.steps, kind="arm")
            for row in rows
        ),
        tables=tuple(_tables(rows)),
        notes=tuple(footnotes(rows)),
        cost_unit="steps",
    )


def _tables(rows: Sequence["Simulated"]) -> Iterator[shown.NumberTable]:
    yield _main_table(rows)
    for by in ("confusion", "by_hops", "by_dataset"):
        yield _label_table(rows, by)


def _main_table(rows: Sequence["Simulated"]) -> shown.NumberTable:
    timed = ["s", "s by arm"] if rows[0].seconds is not None else []
    cells = []
    for row in rows:
        seconds = (
            [] if row.arm_seconds is None else [decimal(row.seconds), "/".join(map(decimal, row.arm_seconds.values()))]
        )
        cells.append(
            (
                *_named(row),
                _pair(row.em, error=row.em_se),
                f"{row.steps:.2f}",
                _pair(row.above_line, error=row.above_line_se, sign="+"),
                "" if row.oracle_share is None else f"{100 * row.oracle_share:.0f}%",
                _percents(row.arms),
                *seconds,
            )
        )
    columns = ("policy", "lambda", "EM", "steps", "above line", "of oracle", "arms %", *timed)
    return shown.NumberTable(title="exact match (EM) and steps", columns=columns, rows=tuple(cells))


def _label_table(rows: Sequence["Simulated"], by: Literal["confusion", "by_hops", "by_dataset"]) -> shown.NumberTable:
    labels = getattr(rows[0], by)
    nothing = "none right" if by == "confusion" else "unknown"
    heads = [nothing if one.label is None else f"hops {one.label}" if by == "by_hops" else one.label for one in labels]
    cells = []
    for row in rows:
        if row.seeds and len(labels) > 1:
            sent = ((_percents(one.arms), one.seconds) for one in getattr(row, by))
            cells.append((*_named(row), *(arms if s is None else f"{arms}  {decimal(s)} s" for arms, s in sent)))
    columns = ("sent to %", "lambda", *(f"{a} ({b.questions})" for a, b in zip(heads, labels, strict=True)))
    return shown.NumberTable(title=_LABELS[by], columns=columns, rows=tuple(cells))


def _percents(shares: Mapping[ArmName, float]) -> str:
    return "/".join(f"{100 * share:.0f}" for share in shares.values())


def footnotes(rows: Sequence["Simulated"]) -> list[str]:
    first, seeds = rows[0], max(row.seeds for row in rows)
    notes = [
        f"EM in % of {first.total} questions, {first.n} of them judged; mean and standard error over {seeds} seeds",
        f"arms %: {' / '.join(first.arms)}",
    ]
    if seeds:
        notes.append(
            "sent to %: of the questions whose cheapest right arm (hops, data set) is the column's (their number), the "
            "share sent to each arm, in the order of arms %, and their mean seconds where the table has them"
        )
    for name, weight, one in ((row.policy, row.weight, row.first_pass) for row in rows):
        if one is not None:
            notes.append(f"{name}, lambda {weight:g}, {one.labels:,.1f} labels a pass, {while_learning(one)}")
    if any(row.full_information for row in rows):
        notes.append("* fitted to the outcomes of all arms, which no live policy sees")
    return notes + [
        f"{row.policy}: {row.faults} decisions by the fallback, {row.refused} updates refused: {row.reason}"
        for row in rows
        if row.faults or row.refused
    ]


def check_labelled(share: float) -> None:
    if not 0.0 < share <= 1.0:
        remedy = "use more than 0 and at most 1, for example 0.3"
        raise InvalidInput(f"{share!r} is no share of the decisions", field="labelled", remedy=remedy)


def while_learning(one: FirstPass) -> str:
    even = (
        "does not break even" if one.break_even is None else f"breaks even after {counted(one.break_even, 'question')}"
    )
    return (
        f"{one.passes} orders of {one.questions} questions: while it learns it earns {one.reward:.3f} a question and "
        f"{even}; always {one.incumbent} earns {one.always[one.incumbent]:.3f}, the best arm of each question "
        f"{one.oracle:.3f}"
    )


def _named(row: "Simulated") -> tuple[str, str]:
    return row.policy + ("*" if row.full_information else ""), "" if row.weight is None else f"{row.weight:g}"


def _pair(value: float, *, error: float | None, sign: str = "") -> str:
    return decimal(value, 2, sign=sign) + ("" if error is None else f" ± {error:.2f}")

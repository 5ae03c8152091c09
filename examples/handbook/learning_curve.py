"""`make handbook-curve`: rewards of the demo's policy while it learns the recorded table, as text and as a picture.

The table has the outcome of every arm for every question (`make handbook-table`). Each seed asks every question once,
in its own order; the policy draws an arm and learns only the outcome of this arm, with the code of the service. The
rewards of always one arm are means over the same questions.
"""

import argparse
import json
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console

from ragbandit.examples.handbook.command import DATA, HERE, TABLE, environment_of
from ragbandit.examples.handbook.side_by_side import rewards_of
from ragbandit.router.cli.console import errors
from ragbandit.router.cli.progress import show_progress
from ragbandit.router.comparison import NOT_KNOWN
from ragbandit.router.comparison.assessment import Assessment, LearningCurve
from ragbandit.router.comparison.page import write_page
from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.feature_cache import embed_texts
from ragbandit.router.offline.estimation import Progress, no_progress
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.logs.tables import LabelledTable, read_table
from ragbandit.router.offline.passes import Learning, Played, break_even, table_rows
from ragbandit.router.policies import untrained_policy
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.processes.this_process import cores
from ragbandit.shared.texts.formats import decimal
from ragbandit.shared.types import ArmName, Indices, Matrix, Vector

SEEDS: Final = 20
#: name of the curve of the router that is held back to the incumbent
HELD: Final = "router, with incumbent"
#: the band, in quantiles over the seeds
BAND: Final = (0.05, 0.95)
#: number of points of the curve; every PRINTED-th point is printed; columns of the printed curve
POINTS, PRINTED, COLUMNS = 48, 3, 64
#: lines of the small picture, and smallest number of questions of its points: means of fewer questions are noise
LINES, FIRST = 7, 20
#: number of questions of the shortest prefix that is compared: in shorter ones one answer changes the ratio too much
LEAST_PREFIX: Final = 100

console = Console(emoji=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Mean reward per question over the first `questions` questions, as mean over the seeds, with the band."""

    questions: int
    reward: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Late:
    """Means over the last third of the questions: share right, steps and reward."""

    right: float
    steps: float
    reward: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Results of a policy's passes over a table, and of always one arm on the same questions."""

    name: str
    incumbent: str
    seeds: int
    questions: int
    points: tuple[Point, ...]
    #: mean reward per question of always one arm, and of the best arm of every question
    always: Mapping[str, float]
    oracle: float
    #: mean reward per question minus the mean of always the best fixed arm, and its standard error over questions; a
    #: question's reward is its mean over the seeds
    ahead: float
    ahead_se: float
    #: per arm: lead per question of one pass over always this arm, with its 95 % interval over questions and orders
    #: (mean, low, high); empty with a single seed
    leads: Mapping[str, tuple[float, float, float]]
    #: number of questions from which on the sum of rewards stays at or above the incumbent's, in the median seed; None
    #: if it does so in fewer than half of the seeds. And the share of the seeds in which it does so
    break_even: int | None
    break_even_share: float
    #: smallest share of the incumbent's reward, over all seeds and all numbers of questions from 100 on
    worst_prefix: float | None
    #: means of the policy under its name, and of always one arm under the arm's name
    late: Mapping[str, Late]

    @property
    def best_fixed(self) -> str:
        """The arm with the highest mean reward."""
        return max(self.always, key=lambda arm: self.always[arm])

    @property
    def beyond_doubt(self) -> bool:
        """Whether the band ends above always the best fixed arm, and the difference is above 1.96 standard errors."""
        clear = self.points[-1].low > self.always[self.best_fixed] + 1e-9  # sums of the same rewards in another order
        return clear and self.ahead > 1.96 * self.ahead_se


def main() -> None:
    """Print the curves, and write them as a page if `--report` is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--data", type=Path, default=DATA, help="folder for features, and for learning.json")
    parser.add_argument("--config", type=Path, default=HERE / "config.yaml", help="settings other than the demo's")
    parser.add_argument("--report", type=Path, help="write the curves as FILE.html")
    parser.add_argument("--brief", action="store_true", help="print a small picture, and leave the incumbent out")
    chosen = parser.parse_args()
    data = chosen.data.absolute()
    settings = load(environ=environment_of(chosen.config.absolute(), data=data)).settings
    incumbent = None if chosen.brief else settings.policy.incumbent
    table = read_table(chosen.table)
    with show_progress(errors) as progress:
        free, held = learned(table, settings=settings, seeds=chosen.seeds, incumbent=incumbent, progress=progress)
    data.mkdir(parents=True, exist_ok=True)
    found = {"free": asdict(free), "held": None if held is None else asdict(held)}
    (data / "learning.json").write_text(json.dumps(found, indent=2))
    if chosen.brief:
        for line in picture(free):
            console.print(line, soft_wrap=True, highlight=False, markup=False)
        return
    console.print(sentence(free), style="bold", highlight=False)
    if held is not None:
        console.print(safe_start(held, harm=settings.policy.harm), highlight=False)
    console.print()
    for line in chart(free):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    if chosen.report is not None:
        write_page(chosen.report, assessment([free] if held is None else [free, held]))


def learned(
    table: LabelledTable, *, settings: Settings, seeds: int, incumbent: str | None, progress: Progress = no_progress
) -> tuple[Curve, Curve | None]:
    """Returns (curve of the policy without an incumbent, curve with `incumbent` or None) on this table."""
    asked, features, encoder_hash = settings.policy, None, ""
    if "features" in untrained_policy(settings.policy_definition).needs:
        encoder = make_encoder(settings.encoder)
        features = embed_texts([row.question for row in table.rows], encoder=encoder)
        encoder_hash = encoder.hash
    rows = table_rows(
        table, features=features, encoder_hash=encoder_hash, reward=settings.reward, label=settings.policy.label
    )

    def passes(incumbent: str | None) -> list[Played]:
        changes = {"policy": asked.model_copy(update={"incumbent": incumbent})}
        there, jobs = settings.model_copy(update=changes), min(cores(), seeds)
        return played(rows, settings=there, seeds=seeds, jobs=jobs, progress=progress)

    rewards = rewards_of(table, reward=settings.reward)
    curve = partial(curve_of, table=table, rewards=rewards, incumbent=asked.incumbent)
    free = curve(passes(None), name="router")
    return free, None if incumbent is None else curve(passes(incumbent), name=HELD)


def played(
    rows: Sequence[Logged], *, settings: Settings, seeds: int, jobs: int, progress: Progress = no_progress
) -> list[Played]:
    """A pass for each seed. jobs: number of processes."""
    one = partial(play, rows, settings=settings)
    if jobs == 1:
        return [one(seed=seed, progress=partial(progress, f"seed {seed}")) for seed in range(seeds)]
    passes = []
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # the processes share the cores already
    # Not forked, since a child could deadlock: the parent may have threads of torch.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done, future in enumerate([pool.submit(one, seed=seed) for seed in range(seeds)], start=1):
            passes.append(future.result())
            progress("orders", done, seeds)
    return passes


def play(
    rows: Sequence[Logged],
    *,
    settings: Settings,
    seed: int,
    labelled: float = 1.0,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Played:
    """A pass of the configured policy over all questions, in the order of the seed.

    rows, labelled: see `Learning`. progress: receives (questions done, total).
    """
    learning = Learning(
        untrained_policy(settings.policy_definition), rows=rows, settings=settings.policy, seed=seed, labelled=labelled
    )
    total = len(rows) // len(learning.arms)
    for done, question in enumerate(np.random.default_rng(seed).permutation(np.arange(total)), start=1):
        learning.step(int(question))
        progress(done, total)
    return learning.played()


def curve_of(
    passes: Sequence[Played], *, name: str, table: LabelledTable, rewards: Matrix, incumbent: str | None
) -> Curve:
    """The curve of these passes, each over the whole table. rewards: reward of every row and arm, shape (n, arms)."""
    means, count = rewards.mean(axis=0), len(table.rows)
    column = int(means.argmax()) if incumbent is None else table.arms.index(ArmName(incumbent))
    even, share = break_even(passes, fixed=rewards[:, column])
    ahead = _per_question(passes, count=count) - rewards[:, int(means.argmax())]
    so_far = np.array([np.cumsum(one.earned) / np.arange(1, count + 1) for one in passes])  # (seeds, n)
    return Curve(
        name=name,
        incumbent=table.arms[column],
        seeds=len(passes),
        questions=count,
        points=tuple(_point(so_far[:, at - 1], questions=at) for at in _places(count)),
        always={str(arm): float(rewards[:, place].mean()) for place, arm in enumerate(table.arms)},
        oracle=float(rewards.max(axis=1).mean()),
        ahead=float(ahead.mean()),
        ahead_se=float(ahead.std(ddof=1) / np.sqrt(count)),
        leads=_leads(passes, rewards=rewards, arms=table.arms),
        break_even=even,
        break_even_share=share,
        worst_prefix=worst_prefix(passes, fixed=rewards[:, column]),
        late=_late(passes, table=table, rewards=rewards, name=name),
    )


def prefixes(passes: Sequence[Played], *, fixed: Vector) -> list[tuple[Vector, Vector]]:
    """Sums of earned rewards and of a fixed arm's, after each number of questions from LEAST_PREFIX on."""
    sums = [(np.cumsum(one.earned), np.cumsum(fixed[one.order])) for one in passes]
    return [
        (ours[min(LEAST_PREFIX, len(ours)) - 1 :], theirs[min(LEAST_PREFIX, len(ours)) - 1 :]) for ours, theirs in sums
    ]


def worst_prefix(passes: Sequence[Played], *, fixed: Vector) -> float | None:
    """Smallest share of the fixed arm's sum over all `prefixes`; None if a sum of that arm is not above 0."""
    sums = prefixes(passes, fixed=fixed)
    if not all((theirs > 0.0).all() for _, theirs in sums):
        return None
    return min(float((ours / theirs).min()) for ours, theirs in sums)


def _leads(passes: Sequence[Played], *, rewards: Matrix, arms: Sequence[str]) -> dict[str, tuple[float, float, float]]:
    """Lead of one pass over always each arm, with the 95 % interval over questions and orders. rewards: (n, arms)."""
    if len(passes) < 2:
        return {}
    orders = float(np.std([one.earned.mean() for one in passes], ddof=1))
    ahead = _per_question(passes, count=len(rewards))[:, None] - rewards
    halves = 1.96 * np.hypot(ahead.std(axis=0, ddof=1) / np.sqrt(len(rewards)), orders)
    return {
        str(arm): (float(mean), float(mean - half), float(mean + half))
        for arm, mean, half in zip(arms, ahead.mean(axis=0), halves, strict=True)
    }


def _per_question(passes: Sequence[Played], *, count: int) -> Vector:
    """Mean reward of every row over the passes, shape (count,)."""
    found = np.zeros(count)
    for one in passes:
        found[one.order] += one.earned / len(passes)
    return found


def _places(count: int) -> list[int]:
    return sorted({max(1, round(count * part / POINTS)) for part in range(1, POINTS + 1)})


def _point(values: Vector, *, questions: int) -> Point:
    low, high = np.quantile(values, BAND)
    return Point(questions=questions, reward=float(values.mean()), low=float(low), high=float(high))


def _late(passes: Sequence[Played], *, table: LabelledTable, rewards: Matrix, name: str) -> dict[str, Late]:
    """Means of the policy and of every arm, on the last third of every pass."""
    third = max(1, len(table.rows) // 3)
    rows = np.concatenate([one.order[-third:] for one in passes])
    drawn = np.concatenate([one.drawn[-third:] for one in passes])

    def of(arms: Indices) -> Late:
        right, steps, reward = (float(each[rows, arms].mean()) for each in (table.correct, table.steps, rewards))
        return Late(right=right, steps=steps, reward=reward)

    fixed = {str(arm): of(np.full(len(rows), place)) for place, arm in enumerate(table.arms)}
    return {name: of(drawn), **fixed}


def sentence(curve: Curve) -> str:
    """The result in words: right answers and steps after learning, and whether the lead is above chance."""
    late, best, end = curve.late, curve.best_fixed, curve.points[-1]
    mine = late[curve.name]
    dear = max(curve.always, key=lambda arm: late[arm].right)
    said = (
        f"After {curve.questions - curve.questions // 3} questions of feedback the router answers {mine.right:.0%} "
        f"right with {mine.steps:.1f} steps a question; always {dear} {late[dear].right:.0%} with "
        f"{late[dear].steps:.1f}, always {curve.incumbent} {late[curve.incumbent].right:.0%} with "
        f"{late[curve.incumbent].steps:.1f}."
    )
    over = f"{decimal(curve.ahead, sign='+')} ± {curve.ahead_se:.3f} over questions"
    compared = f"{end.reward:.3f} ({end.low:.3f} to {end.high:.3f} in {curve.seeds} orders)"
    fixed = f"{curve.always[best]:.3f} of always {best}, the best fixed pipeline"
    if curve.beyond_doubt:
        return (
            f"{said} Learning included, its reward is {compared} against {fixed} ({over}): more than chance explains."
        )
    return f"{said} Learning included, its reward is {compared} against {fixed} ({over}): chance could explain that."


def assessment(curves: Sequence[Curve]) -> Assessment:
    """The page of curves over one table; the first is the policy without an incumbent."""
    first = curves[0]
    return Assessment(
        title=f"The demo's policy while it learns: mean of {first.seeds} orders of {first.questions} questions",
        sentence=sentence(first),
        number=decimal(first.ahead, sign="+") if first.beyond_doubt else NOT_KNOWN,
        about=f"reward a question, learning included, compared with always {first.best_fixed}",
        verdict="better" if first.beyond_doubt else NOT_KNOWN,
        curves=tuple(map(_learning_curve, curves)),
    )


def _learning_curve(curve: Curve) -> LearningCurve:
    fixed = curve.always[curve.best_fixed]
    behind = [place for place, point in enumerate(curve.points) if point.reward < fixed]
    ahead = curve.points[behind[-1] + 1 :] if behind else curve.points
    return LearningCurve(
        name="with an incumbent" if curve.name == HELD else "without an incumbent",
        questions=[point.questions for point in curve.points],
        policy=[point.reward for point in curve.points],
        fixed=[fixed] * len(curve.points),
        rated=[point.questions for point in curve.points],
        break_even=ahead[0].questions if ahead else None,
    )


def safe_start(curve: Curve, *, harm: float) -> str:
    """The result with an incumbent in words: reward while learning, smallest share of the incumbent's, break-even."""
    end, even = curve.points[-1], curve.break_even
    paid = "does not break even" if even is None else f"breaks even at question {even}"
    least = "" if curve.worst_prefix is None else f", never below {curve.worst_prefix:.2f} of it from question 100 on"
    return (
        f"With always {curve.incumbent} as the incumbent (policy.harm {harm:g}) it {paid} with it{least}; learning "
        f"included, its reward is {end.reward:.3f} ({end.low:.3f} to {end.high:.3f}) against "
        f"{curve.always[curve.incumbent]:.3f}."
    )


def picture(curve: Curve) -> list[str]:
    """The curve as a few lines of text: reward upwards, questions to the right, always one arm as a dotted line."""
    points = [point for point in curve.points if point.questions >= FIRST] or list(curve.points)
    heights = [*(point.reward for point in points), *curve.always.values()]
    low, step = min(heights), (max(heights) - min(heights) or 1.0) / (LINES - 1)
    rows = [[" "] * len(points) for _ in range(LINES)]
    names: list[list[str]] = [[] for _ in range(LINES)]
    for arm, value in curve.always.items():
        line = round((value - low) / step)
        rows[line] = ["┄"] * len(points)
        names[line].append(f"always {arm} {value:.3f}")
    for column, point in enumerate(points):
        rows[round((point.reward - low) / step)][column] = "●"
    names[round((points[-1].reward - low) / step)].insert(0, f"● {curve.name} {points[-1].reward:.3f}")
    drawn = [
        f"{low + line * step:6.2f} ┤{''.join(rows[line])} {', '.join(names[line])}".rstrip()
        for line in reversed(range(LINES))
    ]
    last = f"{curve.questions} questions"
    return [*drawn, f"{'':6} └{points[0].questions}{last:─>{len(points) - len(str(points[0].questions))}}"]


def chart(curve: Curve) -> list[str]:
    """The curve with questions downwards and reward to the right, a line for each printed point."""
    marks = {arm: arm[0].upper() for arm in curve.always}
    lines = {**{marks[arm]: value for arm, value in curve.always.items()}, "O": curve.oracle}
    low = min([*lines.values(), *(point.low for point in curve.points)])
    high = max([*lines.values(), *(point.high for point in curve.points)])

    def at(value: float) -> int:
        return round((value - low) / ((high - low) or 1.0) * (COLUMNS - 1))

    named = ", ".join(f"{marks[arm]} always {arm} {value:.3f}" for arm, value in curve.always.items())
    found = [
        f"Reward per question so far, of the {curve.name}: mean of {curve.seeds} orders, and the band of nine in ten",
        f"{named}, O best arm of each question {curve.oracle:.3f}",
    ]
    even = curve.break_even
    for point in curve.points[::-1][::PRINTED][::-1]:
        row = [" "] * COLUMNS
        for place in range(at(point.low), at(point.high) + 1):
            row[place] = "─"
        for mark, value in lines.items():
            row[at(value)] = mark
        row[at(point.reward)] = "●"
        tail = f"{point.reward:.3f} ({point.low:.3f} to {point.high:.3f})"
        if even is not None and even <= point.questions:
            tail, even = f"{tail} break-even with always {curve.incumbent}: question {even}", None
        found.append(f"{point.questions:>5} {''.join(row)} {tail}")
    worst = "" if curve.worst_prefix is None else f"; worst prefix {curve.worst_prefix:.2f} of always {curve.incumbent}"
    return [*found, f"break-even reached in {curve.break_even_share:.0%} of the orders{worst}"]


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        main()
    except RagBanditError as error:
        raise SystemExit(f"{error.code}: {error}") from error

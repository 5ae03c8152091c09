"""Places that print an interval, each by the code that prints it, on made lives; what they print against the truth.

A place is a function of (kind of life, seed) that gives, for each line that it prints, what the line said at each look.
To add a place, write such a function and put it into PLACES.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.coverage.asked_again import AGAINST, ASKED, AskedLife
from benchmarks.coverage.lives import ARMS, DECISIONS, KINDS, Kind, Life, life
from benchmarks.made_logs import made_log, made_rows
from ragbandit.router.comparison import CONFIDENCE, Difference
from ragbandit.router.comparison.intervals import mean_difference
from ragbandit.router.config.learning import PolicySettings
from ragbandit.router.offline.estimation.bandit_log import Log
from ragbandit.router.offline.replay import MemoryPart, Plan, ReplayResult, estimate_candidates, parse_candidates
from ragbandit.router.offline.replay.plan import Description
from ragbandit.router.reporting.reading import ReportRows, ReportScope
from ragbandit.router.reporting.report import report_of
from ragbandit.router.rollouts.evidence import comparison_of
from ragbandit.shared.types import Matrix

#: numbers of decisions after which the interval is checked
LOOKS: Final = tuple(range(100, DECISIONS + 1, 100))
#: mean dollars of an answer of each arm
DOLLARS: Final = np.array([0.02, 0.004, 0.0004])
#: reward that a unit of cost takes, in the report's place
WEIGHT: Final = 0.03
#: a replay at every look costs more: so often for one that may be looked at again
FEW_LOOKS: Final = (500, 1_000, DECISIONS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What a line said at a look; without ends it was withheld."""

    truth: float
    low: float | None
    high: float | None

    @property
    def printed(self) -> bool:
        """There was an interval."""
        return self.low is not None and self.high is not None

    @property
    def missed(self) -> bool:
        """There was one, and it left out the truth."""
        return not (self.low is None or self.high is None or self.low - 1e-9 <= self.truth <= self.high + 1e-9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A number that a place prints with an interval, and its promise."""

    name: str
    #: 0 to 1
    confidence: float
    #: whether the promise holds at every look, or at a single one
    every_look: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """How often a line held the truth."""

    #: last looks, of which so many had an interval, and so many of these held the truth
    looks: int = 0
    printed: int = 0
    covered: int = 0
    #: lives with an interval at any look, and those in which every one held the truth
    ever: int = 0
    always: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(**{name: getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__})

    @classmethod
    def of(cls, looks: Sequence[Look], *, every_look: bool) -> "Tally":
        """Results of one life. The looks of a line that is valid for a single look are separate lines."""
        printed = [look for look in looks if look.printed]
        last = [look for look in (looks[-1:] if every_look else looks) if look.printed]
        return cls(
            looks=1 if every_look else len(looks),
            printed=len(last),
            covered=sum(not look.missed for look in last),
            ever=int(bool(printed)),
            always=int(bool(printed) and not any(look.missed for look in printed)),
        )

    def keeps(self, line: Line) -> bool:
        """Whether the line keeps its promise up to three standard errors."""
        held, count = (self.always, self.ever) if line.every_look else (self.covered, self.printed)
        slack = 3.0 * math.sqrt(line.confidence * (1.0 - line.confidence) * count)
        return held >= line.confidence * count - slack


#: (kind of life, seed) -> what each line said at every look
Place = Callable[[Kind, int], Mapping[Line, Sequence[Look]]]


def replay(kind: Kind, seed: int) -> Mapping[Line, Sequence[Look]]:
    """`ragbandit replay`, once."""
    if kind.partly:  # a replay leaves these questions out
        return {}
    lived = life(kind, seed=seed)
    rated = lived.part(lived.rated)
    lines = _of_replay(rated, _replayed(rated, plan=Plan(segments=("half",))), every_look=False)
    truth = float(rated.value(_always_rarest(rated)).mean() - rated.value(rated.candidate).mean())
    line = Line(name="one against the other", confidence=0.95, every_look=False)
    return {**lines, line: [_look(_against_the_other(rated), truth)]}


def _always_rarest(rated: Life) -> Matrix:
    return np.tile(np.eye(3)[-1], (len(rated.action), 1))


def _against_the_other(rated: Life) -> Difference:
    """Always the rarest arm compared with the other candidate."""
    [always, _] = _replayed(rated, plan=Plan(baseline="column:another")).candidates
    assert always.comparison is not None
    return always.comparison.reward


def _replayed(rated: Life, *, plan: Plan) -> ReplayResult:
    candidates = parse_candidates([f"fixed:{ARMS[-1]}", "column:another"])
    return estimate_candidates(
        [MemoryPart(log=replace(_log(rated), pmfs={"column:another": rated.candidate}))],
        candidates=candidates,
        descriptions=[Description(described=one.name) for one in candidates],
        plan=plan,
        log="a made life",
    )


def _log(rated: Life) -> Log:
    half = np.where(rated.features[:, 0] > 0.0, "upper", "lower").astype(object)
    return made_log(
        arms=ARMS,
        action=rated.action,
        pmf=rated.pmf,
        question=rated.question,
        reward=rated.reward,
        quality=rated.reward,
        cost=np.zeros(len(rated.action)),
        minimum=0.0,
        maximum=1.0,
        features=rated.features.astype(np.float32),
        fields={"half": half},
    )


def _of_replay(rated: Life, found: ReplayResult, *, every_look: bool) -> dict[Line, list[Look]]:
    def line(name: str) -> Line:
        return Line(name=name, confidence=0.95, every_look=every_look)

    always = _always_rarest(rated)
    values = [float(rated.value(policy).mean()) for policy in (always, rated.candidate, rated.pmf)]
    lines = {line("logged policy"): [_look(found.baseline_reward, values[2])]}
    for name, one, value in zip(("always the rarest", "another policy"), found.candidates, values, strict=False):
        lines[line(f"reward, {name}")] = [_look(one.reward, value)]
        assert one.comparison is not None
        lines[line(f"difference, {name}")] = [_look(one.comparison.reward, value - values[2])]
        for half, segment in one.segments.get("half", {}).items():
            rows = rated.part((rated.features[:, 0] > 0.0) == (half == "upper"))
            policy = rows.candidate if name == "another policy" else always[: len(rows.action)]
            truth = float((rows.value(policy) - rows.value(rows.pmf)).mean())
            lines.setdefault(line(f"segment, {name}"), []).append(_look(segment.reward, truth))
    return lines


def _look(measured: Difference, truth: float) -> Look:
    return Look(truth=truth, low=measured.low, high=measured.high)


def rollout(kind: Kind, seed: int) -> Mapping[Line, Sequence[Look]]:
    """A version in shadow against the champion: `policy show`, page and promotion, after every 100 decisions."""
    if kind.partly:  # a version in shadow has the chances of the champion's arms
        return {}
    lived = life(kind, seed=seed)
    apart = lived.candidate - lived.pmf
    gains = {"reward": (apart * lived.chance).sum(axis=1), "cost": apart @ DOLLARS}
    spread = np.random.default_rng([seed, 5]).lognormal(-0.32, 0.8, len(lived.action))  # mean 1
    spent = DOLLARS[lived.action] * spread
    lines: dict[Line, list[Look]] = {}
    for look in LOOKS:
        rows = _report_log(lived.part(slice(0, look)), spent[:look])
        comparison = comparison_of(rows, version="v1", champion="main", seconds=1.0)
        for name, gain in gains.items():
            line = Line(name=f"difference in {name}", confidence=0.95, every_look=True)
            difference = getattr(comparison, name)
            lines.setdefault(line, []).append(_look(difference, float(gain[:look].mean())))
    return lines


def warm(kind: Kind, seed: int) -> Mapping[Line, Sequence[Look]]:
    """A table of every arm's outcome, by `advise` and by `replay`: as many questions as the life has ratings."""
    if kind.partly:  # a table has the outcomes of every arm
        return {}
    lived = life(kind, seed=seed)
    rated = lived.part(lived.rated)
    right = np.random.default_rng([seed, 2]).random(rated.chance.shape) < rated.chance
    ours, always = (rated.candidate * right).sum(axis=1), right[:, 0].astype(float)
    truth = float(rated.value(rated.candidate).mean())
    gain = truth - float(rated.chance[:, 0].mean())
    each = np.repeat(np.arange(len(right)), 3)
    table = replace(rated.part(each), action=np.tile(np.arange(3), len(right)), pmf=np.full((len(each), 3), 1 / 3))
    table = replace(table, reward=right.ravel().astype(float))
    found = _replayed(table, plan=Plan())
    rarest = truth - float(rated.chance[:, 2].mean())
    of_replay = {"reward": (found.candidates[1].reward, truth)}
    of_replay |= {"gain on the rarest": (_against_the_other(table), -rarest)}
    ends = {
        "reward": (mean_difference(ours, possible=(0.0, 1.0), confidence=CONFIDENCE), truth),
        "gain": (mean_difference(ours - always, possible=(-1.0, 1.0), confidence=CONFIDENCE), gain),
    }
    ends |= {f"replay, {name}": value for name, value in of_replay.items()}
    return {Line(name=name, confidence=CONFIDENCE, every_look=False): [_look(*pair)] for name, pair in ends.items()}


def report(kind: Kind, seed: int) -> Mapping[Line, Sequence[Look]]:
    """`ragbandit report` and the first panel: all differences from always each arm, after every 100 decisions.

    The cost of every arm follows the question.
    """
    lived = life(kind, seed=seed)
    rows, random = np.arange(len(lived.action)), np.random.default_rng([seed, 3])
    means = np.array([1.0, 2.0, 4.0]) * np.exp(0.6 * lived.features[:, 1:2] - 0.18)
    spent = (means * np.exp(random.normal(-0.125, 0.5, lived.pmf.shape)))[rows, lived.action]
    worth = lived.chance - WEIGHT * means
    lines: dict[Line, list[Look]] = {}
    for look in LOOKS:
        here = lived.part(slice(0, look))
        log = _report_log(here, spent[:look], weight=WEIGHT)
        for one in report_of(log, _SCOPE, policy=PolicySettings()).arms:
            arm = ARMS.index(one.second.removeprefix("always "))
            values = {"reward": worth[:look], "quality": here.chance, "cost": means[:look]}
            could = here.pmf[:, arm] > 0.0
            for name, value in values.items():
                gain = (here.pmf * value).sum(axis=1) - value[:, arm]
                truth = float(gain[could].mean() if name == "cost" else gain.mean())
                line = Line(name=f"{name}, {one.second}", confidence=0.95, every_look=True)
                lines.setdefault(line, []).append(_look(getattr(one, name), truth))
    return lines


_SCOPE: Final = ReportScope(label="main", since=0.0, until=1.0)


def _report_log(rows: Life, spent: npt.NDArray[np.float64], *, weight: float = 0.0) -> ReportRows:
    quality = np.where(rows.rated, rows.reward, np.nan)
    return made_rows(
        arms=ARMS,
        arm=rows.action,
        pmf=rows.pmf,
        dollars=spent,
        made_at=np.zeros(len(rows.action)),
        candidate=rows.candidate,
        quality=quality,
        cluster=rows.cluster,
        reward=quality - weight * spent,
        expected_quality=np.clip(rows.chance + rows.features[:, :1], 0.0, 1.0),
        expected_cost=np.full(rows.pmf.shape, np.nan),
        best=1.0 - weight * spent,
        worst=-weight * spent,
        limits=(-1.0, 1.0),
    )


def decide(kind: Kind, seed: int) -> Mapping[Line, Sequence[Look]]:
    """`ragbandit report --decide`: reward and quality against always an arm, as more and more questions are asked."""
    lived = AskedLife.of(life(kind, seed=seed), seed=seed)
    lines: dict[Line, list[Look]] = {}
    for asked in ASKED:
        truths = (lived.truth, lived.true_quality)
        for name, found, truth in zip(("reward", "quality"), lived.after(asked), truths, strict=True):
            line = Line(name=f"{name}, always {AGAINST}", confidence=0.95, every_look=True)
            lines.setdefault(line, []).append(Look(truth=truth, low=found.low, high=found.high))
    return lines


PLACES: Final[Mapping[str, Place]] = {
    "report": report,
    "decide": decide,
    "replay": replay,
    "rollouts": rollout,
    "warm": warm,
}


def tallies(place: str, *, kind: str, seeds: Sequence[int]) -> Mapping[Line, Tally]:
    """Every line of a place on `runs` lives of a kind."""
    found: dict[Line, Tally] = {}
    for seed in seeds:
        for line, looks in PLACES[place](KINDS[kind], seed).items():
            found[line] = found.get(line, Tally()) + Tally.of(looks, every_look=line.every_look)
    return found

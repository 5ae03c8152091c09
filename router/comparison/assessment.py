"""An assessment: what a tool shows of its comparisons. One sentence and one number, then pictures, then tables.

`terminal` prints an assessment, and `page` draws an assessment, so that a screen and a page show the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from ragbandit.router.comparison import Comparison, Difference, Verdict

CURVE_POINTS: Final = 60  #: maximum number of points of a learning curve


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontierPoint:
    """A way of answering as a point: its mean quality and its mean cost per question."""

    name: str
    quality: float
    cost: float
    #: arm: always this arm; served: what was served; candidate: another policy; in use: the configured policy
    kind: Literal["arm", "served", "candidate", "in use"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plane:
    """One more picture of ways of answering: a measure of quality against a cost."""

    title: str
    quality: str  #: name of the vertical axis
    cost: str  #: name of the horizontal axis
    points: tuple[FrontierPoint, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionKind:
    """A kind of questions, and who answers it."""

    name: str
    """What the questions have in common, in words."""
    share: float
    """Share of all questions."""
    arms: Mapping[str, float]
    """Arm -> its share of this kind."""
    reward: float | None
    """Mean reward; null if there are too few ratings."""
    over_best: Difference = field(default_factory=Difference)
    """Reward of the policy minus reward of the best fixed arm."""
    better_arm: str | None = None
    """The arm that surely earns more than the best fixed arm here; null if none does."""
    better_by: Difference = field(default_factory=Difference)
    """Reward of `better_arm` minus reward of the best fixed arm."""
    examples: tuple[str, ...] = ()
    """Texts of up to three of the questions, if the reader may see them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningCurve:
    """Mean reward per question so far, of a policy and of a fixed arm."""

    name: str
    """Name that distinguishes the curves of one picture, such as "cold", "warm" or "live"."""
    questions: Sequence[int]
    """Number of questions at each point."""
    policy: Sequence[float]
    """Mean reward of the policy at each point."""
    fixed: Sequence[float]
    """Mean reward of the fixed arm at each point."""
    rated: Sequence[int]
    """Number of ratings at each point."""
    break_even: int | None = None
    """Number of questions after which the policy stays ahead; null if this is not known."""
    against: str = "best fixed arm"
    """The fixed arm."""
    last: Sequence[float] | None = None
    """Last mean of `fixed` + both ends of the interval of the difference; null if there is no interval."""
    note: str | None = None
    """How to read the curve."""
    marks: tuple[tuple[int, str], ...] = ()
    """Changes as (number of questions before the change, what changed)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LineChart:
    """Lines of several ways of answering over a count."""

    title: str
    places: str  #: name of the things that `at` counts, such as "Questions"
    at: Sequence[int]
    lines: Mapping[str, Sequence[float]]  #: way of answering -> its value at each place
    baseline: str = ""  #: the way whose line is dashed
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberTable:
    """A table behind "show the numbers". Cells are texts; all columns after the first are right-aligned."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if wrong := next((row for row in self.rows if len(row) != len(self.columns)), None):
            raise ValueError(f"{self.title}: a row has {len(wrong)} cells, for {len(self.columns)} columns")


@dataclass(frozen=True, kw_only=True, slots=True)
class Assessment:
    title: str  #: such as "Report of the last 7 days"
    sentence: str  #: the whole assessment in one sentence, which begins with `state` if there is one
    number: str  #: the main number, such as "+0.094"; "not known yet" if there is none
    about: str  #: description of the number, with its unit
    headline: str = ""  #: first line of a page, which then folds `sentence`; "" to begin with `sentence`
    verdict: Verdict | None = None  #: gives the number its colour
    interval: str = ""  #: the interval behind the verdict, in words
    #: what decides instead of the policy for more than half of the questions; None if the policy decides
    state: str | None = None
    comparisons: tuple[Comparison, ...] = ()  #: rows of the forest plot, the most important first
    frontier: tuple[FrontierPoint, ...] = ()
    frontier_note: str = ""  #: which ways of answering `frontier` leaves out
    planes: tuple[Plane, ...] = ()
    kinds: tuple[QuestionKind, ...] = ()
    kinds_of: str = ""  #: how well the kinds tell questions apart
    arms: tuple[str, ...] = ()  #: arms in the order of their colours; other arms follow as they appear
    curves: tuple[LearningCurve, ...] = ()
    charts: tuple[LineChart, ...] = ()
    missing: str | None = None  #: evidence missing for the verdict, in words
    actions: tuple[str, ...] = ()  #: next steps
    tables: tuple[NumberTable, ...] = ()
    notes: tuple[str, ...] = ()
    cost_unit: str = "cost"
    facts: Mapping[str, str] = field(default_factory=dict)  #: name -> value, shown as cards

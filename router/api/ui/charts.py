"""Charts over time: the tables that pages hold, of which a script draws the lines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ragbandit.router.serving.overview import Overview, Point, Totals, mean, totals_of
from ragbandit.shared.formats import duration, number, percent
from ragbandit.shared.types import ArmName, ArmTotals

#: arms that a chart has lines of, the most used
MOST_LINES: Final = 8
#: of one cell: None where there is nothing
Value = Callable[[Totals], float | None]
#: how values are written: in a cell, and by the script on its axis
_WRITTEN: Final[dict[str, Callable[[float | None], str]]] = {
    "number": number,
    "percent": percent,
    "seconds": duration,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of a chart."""

    name: str
    #: the arm whose colour and shape it has; None: it has a number of its own
    arm: ArmName | None
    values: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """Lines over time."""

    title: str
    #: number, percent or seconds
    unit: str
    #: seconds since the epoch
    times: tuple[float, ...]
    lines: tuple[Line, ...]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return all(value is None for line in self.lines for value in line.values)

    @property
    def in_words(self) -> str:
        """The newest value of each line, in words."""
        newest = []
        for line in self.lines:
            last = next((value for value in reversed(line.values) if value is not None), None)
            if last is not None:
                newest.append(f"{line.name} {self.written(last)}")
        return f"{self.title}. Newest: {', '.join(newest) or 'nothing'}"

    def written(self, value: float | None) -> str:
        """A value as the table has it."""
        return _WRITTEN[self.unit](value)


def lived(history: Overview) -> Sequence[Point]:
    """The points from the first one at which anything was decided; none where only one is left: that is no line."""
    first = next((step for step, point in enumerate(history.points) if point.totals.decided), len(history.points))
    return history.points[first:] if len(history.points) - first > 1 else ()


def earned_charts(history: Overview) -> list[Chart]:
    """What the policy earned over the time: reward and quality, cost, decisions and latency."""
    points = lived(history)
    times = tuple(point.at for point in points)

    def line(name: str, value: Value) -> Line:
        return Line(name=name, arm=None, values=tuple(value(point.totals) for point in points))

    earned = (
        line("reward", lambda totals: totals.reward),
        line("quality", lambda totals: totals.quality),
    )
    spent = (line("cost", lambda totals: totals.cost),)
    decided = (line("decisions", lambda totals: float(totals.decided)),)
    late = (line("95th percentile", lambda totals: totals.p95_s),)
    return [
        Chart(title="Reward and quality per question", unit="number", times=times, lines=earned),
        Chart(title="Cost per question, as the reward counts it", unit="number", times=times, lines=spent),
        Chart(title="Decisions", unit="number", times=times, lines=decided),
        Chart(title="Latency, 95th percentile", unit="seconds", times=times, lines=late),
    ]


def arm_charts(history: Overview) -> list[Chart]:
    """Share, quality, cost, price, latency and failures of the arms over the time."""
    arms = [one.arm for one in history.arms[:MOST_LINES]]
    points = lived(history)
    times = tuple(point.at for point in points)

    def chart(title: str, unit: str, value: Value) -> Chart:
        lines = [_line(points, arm, value) for arm in arms]
        return Chart(title=title, unit=unit, times=times, lines=tuple(lines))

    shares = tuple(
        Line(name=arm, arm=arm, values=tuple(_share(point.arms.get(arm), point.totals) for point in points))
        for arm in arms
    )
    return [
        Chart(title="Share of the decisions", unit="percent", times=times, lines=shares),
        chart("Quality per question", "number", lambda totals: totals.quality),
        chart("Cost per question", "number", lambda totals: totals.cost),
        chart("Dollars per answer", "number", lambda totals: mean(totals.dollars, totals.answered + totals.failed)),
        chart("Latency, 95th percentile", "seconds", lambda totals: totals.p95_s),
        chart("Failures", "percent", lambda totals: totals.failure_share),
    ]


def _line(points: Sequence[Point], arm: ArmName, value: Value) -> Line:
    none = totals_of(ArmTotals())
    return Line(name=arm, arm=arm, values=tuple(value(point.arms.get(arm, none)) for point in points))


def _share(of: Totals | None, everything: Totals) -> float | None:
    """Of the decisions of a step; None while there are none."""
    return mean(0 if of is None else of.decided, everything.decided)

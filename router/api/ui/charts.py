"""Charts over time: the tables that pages hold, of which a script draws the lines."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ragbandit.router.serving.overview import Overview, Point, mean
from ragbandit.shared.formats import duration, number, percent
from ragbandit.shared.types import ArmName, ArmTotals

#: arms that a chart has lines of, the most used
MOST_LINES: Final = 8
#: of one cell: None where there is nothing
Value = Callable[[ArmTotals], float | None]
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
        line("reward", lambda totals: mean(totals.reward, totals.rewarded)),
        line("quality", lambda totals: mean(totals.quality, totals.rewarded)),
    )
    spent = (line("cost", lambda totals: mean(totals.cost, totals.rewarded)),)
    decided = (line("decisions", lambda totals: float(totals.decided)),)
    late = (line("95th percentile", lambda totals: totals.latency_at(0.95)),)
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
        chart("Quality per question", "number", lambda totals: mean(totals.quality, totals.rewarded)),
        chart("Cost per question", "number", lambda totals: mean(totals.cost, totals.rewarded)),
        chart("Dollars per answer", "number", lambda totals: mean(totals.dollars, totals.ended)),
        chart("Latency, 95th percentile", "seconds", lambda totals: totals.latency_at(0.95)),
        chart("Failures", "percent", lambda totals: mean(totals.failed, totals.ended)),
    ]


def _line(points: Sequence[Point], arm: ArmName, value: Value) -> Line:
    none = ArmTotals()
    return Line(name=arm, arm=arm, values=tuple(value(point.arms.get(arm, none)) for point in points))


def _share(of: ArmTotals | None, everything: ArmTotals) -> float | None:
    """Of the decisions of a step; None while there are none."""
    return mean(0 if of is None else of.decided, everything.decided)


WIDTH, HEIGHT = 640.0, 220.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 8.0, 10.0, 26.0
#: an interval so many times as wide as the narrowest one is cut where the axis ends
_WIDEST: Final = 6.0
#: points that a picture shows
MOST: Final = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class SequencePicture:
    """An anytime interval as it moved: a band around a line, over the number of rows."""

    #: corners of the band, and points of the line, as SVG's `points`
    band: str
    middle: str
    #: (position, label) of the lines across, and along
    across: tuple[tuple[float, str], ...]
    along: tuple[tuple[float, str], ...]
    zero: float | None
    margin: float | None
    width: float = WIDTH
    height: float = HEIGHT


def sequence_of(points: Any, *, margin: float | None = None) -> SequencePicture | None:
    """The picture of points [rows, middle, low, high]; None for fewer than two that can be drawn."""
    rows = [tuple(map(float, point[:4])) for point in points or () if _drawable(point)][-MOST:]
    if len(rows) < 2:
        return None
    first, last = rows[0][0], rows[-1][0]
    # The first intervals are as wide as the scale: what matters is where it ends.
    widest = _WIDEST / 2.0 * max(rows[-1][3] - rows[-1][2], 1e-9)
    held = [row for row in rows if row[3] - row[2] <= widest]
    values = [0.0, *(value for row in held for value in row[1:4])]
    values += [] if margin is None else [margin]
    low, high = min(values), max(values)
    pad = 0.06 * (high - low) or 0.1
    low, high = low - pad, high + pad

    def x(count: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (count - first) / max(1e-9, last - first), 2)

    def y(value: float) -> float:
        share = (min(high, max(low, value)) - low) / (high - low)
        return round(HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * share, 2)

    upper = [f"{x(point[0])},{y(point[3])}" for point in rows]
    lower = [f"{x(point[0])},{y(point[2])}" for point in reversed(rows)]
    return SequencePicture(
        band=" ".join(upper + lower),
        middle=" ".join(f"{x(point[0])},{y(point[1])}" for point in rows),
        across=tuple((y(value), f"{value:g}") for value in ticks(low, high)),
        along=tuple((x(count), f"{int(count):,}") for count in ticks(first, last, most=4)),
        zero=y(0.0),
        margin=None if not margin else y(margin),
    )


def _drawable(point: Any) -> bool:
    return (
        isinstance(point, list | tuple)
        and len(point) >= 4
        and all(isinstance(value, int | float) and math.isfinite(value) for value in point[:4])
    )


def ticks(low: float, high: float, *, most: int = 5) -> list[float]:
    """Round numbers from low to high, at most so many."""
    if not high > low:
        return [low]
    raw = (high - low) / most
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    return [round(step * count, 12) for count in range(math.ceil(low / step), math.floor(high / step) + 1)]


def around_zero(intervals: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Ends of an axis that holds zero, the middles of these (low, middle, high), and the intervals, with some room.

    An interval that is far wider than the narrowest runs beyond them: else it would leave no room to see the others.
    """
    narrowest = min((high - low for low, _, high in intervals), default=0.0)
    held = [one for one in intervals if one[2] - one[0] <= _WIDEST * max(narrowest, 1e-9)]
    values = [0.0, *(middle for _, middle, _ in intervals), *(end for low, _, high in held for end in (low, high))]
    low, high = min(values), max(values)
    pad = 0.05 * (high - low) or 0.1
    return low - pad, high + pad

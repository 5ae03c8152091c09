"""Charts over time: the tables that pages hold, of which a script draws the lines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ragbandit.router.serving.overview import Overview, Point, Totals, mean, totals_of
from ragbandit.shared.formats import duration, number, percent
from ragbandit.shared.types import ArmTotals

#: arms that a chart has lines of, the most used
MOST_LINES: Final = 8
#: how values are written: in a cell, and by the script on its axis
_WRITTEN: Final[dict[str, Callable[[float | None], str]]] = {
    "number": number,
    "percent": percent,
    "seconds": duration,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """Lines over time."""

    title: str
    #: number, percent or seconds
    unit: str
    #: seconds since the epoch
    times: Sequence[float]
    #: name -> a value for each time
    lines: Mapping[str, Sequence[float | None]]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return all(value is None for values in self.lines.values() for value in values)

    @property
    def in_words(self) -> str:
        """The newest value of each line, in words."""
        known = {name: [value for value in values if value is not None] for name, values in self.lines.items()}
        newest = [f"{name} {self.written(values[-1])}" for name, values in known.items() if values]
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

    def chart(title: str, unit: str, **fields: str) -> Chart:
        lines = {name: [getattr(point.totals, field) for point in points] for name, field in fields.items()}
        return Chart(title=title, unit=unit, times=[point.at for point in points], lines=lines)

    return [
        chart("Reward and quality per question", "number", reward="reward", quality="quality"),
        chart("Cost per question, as the reward counts it", "number", cost="cost"),
        chart("Decisions", "number", decisions="decided"),
        chart("Latency, 95th percentile", "seconds", **{"95th percentile": "p95_s"}),
    ]


def arm_charts(history: Overview) -> list[Chart]:
    """Share, quality, cost, price, latency and failures of the arms over the time."""
    arms = [one.arm for one in history.arms[:MOST_LINES]]
    points, none = lived(history), totals_of(ArmTotals())

    def chart(title: str, unit: str, value: Callable[[Totals, Totals], float | None]) -> Chart:
        """value: of an arm and of all arms at a time."""
        lines = {str(arm): [value(point.arms.get(arm, none), point.totals) for point in points] for arm in arms}
        return Chart(title=title, unit=unit, times=[point.at for point in points], lines=lines)

    return [
        chart("Share of the decisions", "percent", lambda arm, everything: mean(arm.decided, everything.decided)),
        chart("Quality per question", "number", lambda arm, _: arm.quality),
        chart("Cost per question", "number", lambda arm, _: arm.cost),
        chart("Dollars per answer", "number", lambda arm, _: mean(arm.dollars, arm.answered + arm.failed)),
        chart("Latency, 95th percentile", "seconds", lambda arm, _: arm.p95_s),
        chart("Failures", "percent", lambda arm, _: arm.failure_share),
    ]

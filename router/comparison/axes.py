"""Scales of pictures: from values to places in [0, 1], with ticks whose labels differ."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

#: if values differ by less than this share of the largest one, their axis includes zero
_LEAST: Final = 0.02
_MOST: Final = 1e9
#: largest number of steps between ticks of time
_MOST_TIMES: Final = 6
_DAY: Final = 86_400.0
#: distances between two ticks of time, in seconds; larger distances are `_DAY` x 30 x 2^n
_STEPS: Final = (
    *(60.0 * count for count in (1, 2, 5, 10, 15, 30)),
    *(3_600.0 * count for count in (1, 2, 3, 6, 12)),
    *(_DAY * count for count in (1, 2, 5, 10, 15)),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class AxisScale:
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    """(value, label). A label of a time has up to two lines."""

    def at(self, value: float) -> float:
        """The place of a value in [0, 1]; values outside the scale stand at its ends, and NaN at 0."""
        return min(max(0.0, (value - self.low) / (self.high - self.low)), 1.0)


def number_scale(values: Iterable[float | None], *, unit: str = "", room: float = 0.06, ticks: int = 3) -> AxisScale:
    """A scale for numbers. unit: "percent", "seconds", "dollars"; labels contain no other unit.

    room: share of the range that stays free at both ends; the scale begins below 0 only if a value does
    ticks: smallest number of ticks, at most 5
    """
    finite = [min(max(value, -_MOST), _MOST) for value in values if value is not None and math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    if low == high == 0.0:
        high = 1.0
    if high - low < _LEAST * max(abs(low), abs(high)):
        low, high = min(low, 0.0), max(high, 0.0)
    span = max(high - low, 1e-9)
    low, high = (0.0 if 0.0 <= low < room * span else low - room * span), high + room * span
    size, prefix, suffix = _shown_unit(unit, largest=max(abs(low), abs(high)))
    power = 10.0 ** math.ceil(math.log10((high - low) / size))
    for divisor in (1.0, 2.0, 5.0, 10.0, 20.0, 50.0):
        step = power / divisor
        counts = range(math.ceil(low / size / step - 1e-9), math.floor(high / size / step + 1e-9) + 1)
        if len(counts) >= ticks:
            break
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    labels = [f"{prefix}{abs(count * step):,.{decimals}f}{suffix}" for count in counts]
    signs = ["-" if count < 0 else "" for count in counts]
    marks = zip((count * step * size for count in counts), map("".join, zip(signs, labels, strict=True)), strict=True)
    return AxisScale(low=low, high=high, ticks=tuple(marks))


def _shown_unit(unit: str, *, largest: float) -> tuple[float, str, str]:
    """Returns (size of the shown unit, prefix of its labels, suffix of its labels)."""
    if unit == "percent":
        return 0.01, "", " %"
    if unit == "seconds":
        sizes = ((3_600.0, " h"), (60.0, " min"), (1.0, " s"))
        size, suffix = next(((size, suffix) for size, suffix in sizes if largest >= 2.0 * size), (0.001, " ms"))
        return size, "", suffix
    return 1.0, "$" if unit == "dollars" else "", ""


def time_scale(first: float, last: float) -> AxisScale:
    """A scale for times in seconds since 1970. Labels are UTC: "14:00", "Nov 26", "Nov 2026"."""
    last = max(last, first + 60.0)
    step = next((step for step in _STEPS if (last - first) / step <= _MOST_TIMES), 30.0 * _DAY)
    while (last - first) / step > _MOST_TIMES:
        step *= 2.0
    begin = math.ceil(first / step) * step
    places = [begin + count * step for count in range(int((last - begin) / step) + 1)]
    return AxisScale(low=first, high=last, ticks=tuple(zip(places, _time_labels(places, step=step), strict=True)))


def _time_labels(places: list[float], *, step: float) -> list[str]:
    """Labels of times. If the date of a time of day or the year of a date changes, it is on a second line."""
    times = [datetime.fromtimestamp(place, UTC) for place in places]
    is_day = step >= _DAY
    names = [f"{at:%b} {at.day}" if is_day else f"{at:%H:%M}" for at in times]
    contexts = [f"{at.year}" if is_day else f"{at:%b} {at.day}" for at in times]
    if is_day and len(set(contexts)) == 1:
        return names
    labels: list[str] = []
    for place, (name, context) in enumerate(zip(names, contexts, strict=True)):
        is_clear = place > 0 and context == contexts[place - 1] and name not in names[:place]
        labels.append(name if is_clear else f"{name}\n{context}")
    return labels

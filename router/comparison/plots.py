"""Plots as HTML with inline SVG: no script, and colours by variables of `page.css`.

An SVG is as wide as its place: x in percent, y in pixels, so that its texts have the same size at every width. Lines
stand in a nested SVG that is stretched. Each picture has a title, a text alternative, and a table of its numbers.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from markupsafe import Markup

from ragbandit.router.comparison.assessment import NumberTable
from ragbandit.router.comparison.axes import AxisScale, number_scale, time_scale
from ragbandit.shared.texts.formats import decimal, duration, moment, money, number, one_line, percent

#: look of a mark: (index of the colour, index of the shape)
Look = tuple[int, int]
#: largest number of marks along a line, of points of a line, and of rows of a table
_MARKS, _POINTS, _ROWS = 12, 300, 60
#: the mark of a mean is filled from this number of ratings on, and hollow below it
FEW: Final = 5
#: height in pixels of a plot, and of the place below it for the labels of its axis
HEIGHT, _BELOW = 190, 40
#: number of letters that fit below the axis of an interval
_ROOM: Final = 24
_WRITTEN: Final[dict[str, Callable[[float | None], str]]] = {
    "percent": percent,
    "seconds": duration,
    "reward": decimal,
    "dollars": partial(money, unit="dollars"),
}
_SHAPES: Final = (
    "M6 1a5 5 0 1 0 .01 0z",
    "M1.5 1.5h9v9h-9z",
    "M6 .8 11.5 10.8H.5z",
    "M6 .3 11.7 6 6 11.7.3 6z",
    "M6 11.2 .5 1.2h11z",
    "M4 1h4v3h3v4H8v3H4V8H1V4h3z",
    "M6 .5 7.6 4.4l4.1.2-3.2 2.6 1.1 4L6 9l-3.6 2.2 1.1-4L.3 4.6l4.1-.2z",
    "M3 1h6l2.5 5L9 11H3L.5 6z",
    "M6 0a6 6 0 1 0 .01 0zM6 3.2a2.8 2.8 0 1 1-.01 0z",
)
RING: Final = 8
#: colour of a verdict -> index of the shape of its estimate
_VERDICTS: Final = {"good": 2, "bad": 4}


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    title: str
    alt: str
    """The picture in words."""
    body: Markup
    table: NumberTable
    note: str = ""
    """How to read the picture."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """An interval in a row of a chart. Without ends, only the line at "no difference" is drawn."""

    text: str
    kind: str = "busy"
    """Colour of the bar: good, bad, busy (not known yet)."""
    low: float | None = None
    high: float | None = None
    point: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    name: str
    values: Sequence[float | None]
    """One value for each place; None if the line has no value there."""
    look: Look
    is_dashed: bool = False
    band: tuple[Sequence[float | None], Sequence[float | None]] | None = None
    """(lower ends, upper ends) of the intervals of the values."""
    counts: Sequence[int] | None = None
    """Number of ratings behind each value; a value with fewer than FEW ratings has a hollow mark."""


class ArmSigns:
    """Gives each arm on a page a colour and a shape: first the given arms, then others as they appear."""

    def __init__(self, arms: Iterable[str] = ()) -> None:
        self._ranks = {arm: rank for rank, arm in enumerate(arms)}

    def __call__(self, arm: str) -> Markup:
        return named_mark(arm, self.look(arm))

    def look(self, arm: str) -> Look:
        """The first 64 arms all look different."""
        rank = self._ranks.setdefault(arm, len(self._ranks))
        return rank % 8, (rank + rank // 8) % 8


def fill_template(template: str, *values: object) -> Markup:
    """Fill a constant template; texts among the values are escaped."""
    return Markup(template).format(*values)  # noqa: S704 - templates are constants of this package


def joined(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def named_mark(name: str, look: Look) -> Markup:
    mark = '<svg class="mark arm-{}" viewBox="0 0 12 12" aria-hidden="true" focusable="false"><path d="{}"/></svg>'
    return fill_template(f'<span class="arm">{mark}<bdi>{{}}</bdi></span>', look[0], _SHAPES[look[1]], one_line(name))


def legend(entries: Iterable[tuple[str, Look]]) -> Markup:
    items = joined(fill_template("<li>{}</li>", named_mark(name, look)) for name, look in entries)
    return fill_template('<ul class="legend">{}</ul>', items)


def share_x(share: float) -> str:
    return f"{100.0 * share:.2f}%"


def y_of(value: float, scale: AxisScale) -> float:
    return HEIGHT * (1.0 - scale.at(value))


def mark(x: float, y: float, *, look: Look | str, size: float = 12.0, is_hollow: bool = False) -> Markup:
    """A mark around (x, y). look: of a line or an arm, or the colour of a verdict. x: share; y and size: pixels."""
    colour, shape = (look, _VERDICTS.get(look, 3)) if isinstance(look, str) else (f"arm-{look[0]}", look[1])
    colour += " few" if is_hollow else ""
    path = '<path class="point {}" transform="scale({:.3g}) translate(-6 -6)" d="{}"/>'
    return fill_template(f'<svg x="{{}}" y="{{:.1f}}">{path}</svg>', share_x(x), y, colour, size / 12.0, _SHAPES[shape])


def draw_bars(
    title: str,
    *,
    names: Sequence[str],
    states: Sequence[tuple[str, str]],
    columns: Mapping[str, Sequence[Bar]],
    alt: str,
    note: str,
    units: Mapping[str, str] | None = None,
) -> Picture:
    """Intervals in rows; each column has its own axis, whose unit is in `units`. states: (colour, word) of each row."""
    parts = [Markup('<div class="name head"></div>')]
    scales = []
    for place, (head, cells) in enumerate(columns.items()):
        ends = [end for cell in cells for end in (cell.low, cell.high)]
        scales.append(number_scale([0.0, *ends], unit=(units or {}).get(head, "")))
        parts.append(fill_template('<div class="c{} head">{}</div>', place, one_line(head)))
    named = '<div class="name"><bdi>{}</bdi> <span class="state {}">{}</span></div>'
    cell = '<div class="c{}"><bdi class="again">{}</bdi>{}<span class="value {}">{}</span></div>'
    for row, (name, state) in enumerate(zip(map(one_line, names), states, strict=True)):
        parts.append(fill_template(named, name, *state))
        for place, (bar, scale) in enumerate(zip((cells[row] for cells in columns.values()), scales, strict=True)):
            parts.append(fill_template(cell, place, name, _interval(bar, scale=scale), bar.kind, bar.text))
    parts.append(Markup('<div class="name foot"></div>'))
    foot = '<div class="c{} foot"><svg class="plot" width="100%" height="24">{}</svg></div>'
    parts += [fill_template(foot, place, _x_labels(scale, top=0, room=_ROOM)) for place, scale in enumerate(scales)]
    rows = [(name, *(cells[row].text for cells in columns.values()), states[row][1]) for row, name in enumerate(names)]
    return Picture(
        title=title,
        alt=alt,
        body=fill_template('<div class="forest of-{}">{}</div>', len(columns), joined(parts)),
        table=NumberTable(title=title, columns=("", *columns, "Verdict"), rows=tuple(rows)),
        note=note,
    )


def _interval(bar: Bar, *, scale: AxisScale) -> Markup:
    zero = share_x(scale.at(0.0))
    parts = [fill_template('<line class="zero" x1="{}" x2="{}" y1="0" y2="28"/>', zero, zero)]
    if bar.low is not None and bar.high is not None:
        left, right = share_x(scale.at(bar.low)), share_x(scale.at(bar.high))
        line = '<line class="range {}" x1="{}" x2="{}" y1="{}" y2="{}"/>'
        parts.append(fill_template(line, bar.kind, left, right, 14, 14))
        parts += [fill_template(line, f"{bar.kind} end", end, end, 9, 19) for end in (left, right)]
        if bar.point is not None:
            parts.append(mark(scale.at(bar.point), 14.0, look=bar.kind, size=15.0))
    return fill_template('<svg class="plot" width="100%" height="28">{}</svg>', joined(parts))


def _x_labels(
    scale: AxisScale, *, top: float, below: Callable[[float], str] | None = None, room: int | None = None
) -> Markup:
    """Ticks and labels of the axis at the bottom. Phones show only every second label.

    below: second line for a tick. room: with more letters, every second label is left out; None for no limit
    """
    parts = []
    zero = next((place for place, (value, _) in enumerate(scale.ticks) if value == 0.0), 0)
    is_tight = room is not None and sum(len(label) + 1 for _, label in scale.ticks) > room and len(scale.ticks) > 3
    for place, (value, label) in enumerate(scale.ticks):
        first, _, second = label.partition("\n")
        second = second or (below(value) if below else "")
        is_odd = (place - zero) % 2 == 1
        x, odd = share_x(scale.at(value)), "odd" if is_odd and len(scale.ticks) > 4 else ""
        parts.append(fill_template('<line class="tick" x1="{}" x2="{}" y1="{}" y2="{}"/>', x, x, top, top + 4))
        for text, y in ((first, top + 17), (second, top + 32)):
            if text and not (is_odd and is_tight):
                parts.append(
                    fill_template('<text class="{}" x="{}" y="{}" text-anchor="middle">{}</text>', odd, x, y, text)
                )
    return joined(parts)


def frame(
    x: AxisScale, y: AxisScale, *, inside: Iterable[Markup], below: Callable[[float], str] | None = None
) -> Markup:
    """A plot with a grid and both axes. inside: parts of the plot, with x as shares and y in pixels from the top."""
    parts = []
    for value, label in y.ticks:
        top, kind = f"{y_of(value, y):.1f}", "zero" if value == 0.0 else "grid"
        parts.append(fill_template('<line class="{}" x1="0" x2="100%" y1="{}" y2="{}"/>', kind, top, top))
        parts.append(fill_template('<text x="-8" y="{}" dy="4" text-anchor="end">{}</text>', top, label))
    parts.append(_x_labels(x, top=HEIGHT, below=below))
    whole = '<div class="axes"><svg class="plot" width="100%" height="{}">{}</svg></div>'
    return fill_template(whole, HEIGHT + _BELOW, joined([*parts, *inside]))


def draw_lines(
    title: str,
    *,
    xs: Sequence[float],
    series: Sequence[Line],
    unit: str = "",
    times: bool = False,
    from_zero: bool = False,
    x_name: str = "Time",
    verticals: Sequence[tuple[float, str]] = (),
    below: Callable[[float], str] | None = None,
    note: str = "",
) -> Picture | None:
    """Lines over time or over a count; None if no line has a value. unit: as in `number_scale`.

    xs: times in seconds since 1970 if `times`, else counts; ascending. A line over time has a gap at a
        None. Its piece to the last time, whose step is not over, is dashed
    x_name: name of what `xs` counts, as the title of the table's first column
    verticals: (place, name) of lines that mark a place, such as a break-even
    below: a second line for the label of a place
    """
    ends = [value for line in series for values in (line.values, *(line.band or ())) for value in values]
    if not any(value is not None and math.isfinite(value) for value in ends):
        return None
    y = number_scale([*ends, 0.0] if from_zero else ends, unit=unit, room=0.06 + 0.1 * len(verticals))
    x = time_scale(xs[0], xs[-1]) if times else number_scale([0.0, *xs], room=0.0, ticks=5)
    inside = [
        part for place, line in enumerate(series) for part in _line(line, xs=xs, x=x, y=y, place=place, times=times)
    ]
    for place, (limit, name) in enumerate(verticals):
        where, side = share_x(x.at(limit)), (6, "start") if x.at(limit) < 0.5 else (-6, "end")
        inside.append(fill_template('<line class="said" x1="{}" x2="{}" y1="0" y2="{}"/>', where, where, HEIGHT))
        said = '<text class="said wide" x="{}" y="{}" dx="{}" text-anchor="{}">{}</text>'
        inside.append(fill_template(said, where, 12 + 16 * place, *side, one_line(name)))
    written = _WRITTEN.get(unit, number)
    known = ((line, [place for place, value in enumerate(line.values) if value is not None]) for line in series)
    newest = (f"{line.name} {_cell(line, its_places[-1], written)}" for line, its_places in known if its_places)
    body = frame(x, y, inside=inside, below=below)
    return Picture(
        title=title,
        alt=f"{title}. Last: {', '.join(newest)}",
        body=body + legend((line.name, line.look) for line in series) if len(series) > 1 else body,
        table=NumberTable(
            title=title,
            columns=(x_name, *(line.name for line in series)),
            rows=tuple(
                (moment(xs[place]) if times else number(xs[place]), *(_cell(line, place, written) for line in series))
                for place in _kept(len(xs), most=_ROWS)
            ),
        ),
        note=note,
    )


def polyline(points: Iterable[tuple[float, float]], *, look: Look, is_dashed: bool = False) -> Markup:
    """A line through points of (x as a share, y in pixels)."""
    through = " ".join(f"{1000.0 * left:.1f},{top:.1f}" for left, top in points)
    kind = f"line{' dashed' if is_dashed else ''} arm-{look[0]}"
    line = fill_template('<polyline class="{}" points="{}" vector-effect="non-scaling-stroke"/>', kind, through)
    svg = '<svg viewBox="0 0 1000 {0}" width="100%" height="{0}" preserveAspectRatio="none">{1}</svg>'
    return fill_template(svg, HEIGHT, line)


def _cell(line: Line, place: int, written: Callable[[float | None], str]) -> str:
    low, high = (None, None) if line.band is None else (ends[place] for ends in line.band)
    count = line.counts[place] if line.counts else 0
    interval = "" if low is None else f" ({written(low)} to {written(high)})"
    return written(line.values[place]) + interval + (f" of {count:,}" if count else "")


def _kept(count: int, *, most: int) -> list[int]:
    """Indexes of at most `most` of `count` places at equal distances, the last one included."""
    step = max(1, math.ceil(count / most))
    return list(range((count - 1) % step, count, step))


def _line(line: Line, *, xs: Sequence[float], x: AxisScale, y: AxisScale, place: int, times: bool) -> Iterable[Markup]:
    """Yield intervals, lines, and marks: at about _MARKS points, at points with few ratings, and at single points."""
    kept = _kept(len(xs), most=_POINTS)

    def points(values: Sequence[float | None]) -> dict[int, tuple[float, float]]:
        found = [(xs[index], values[index]) for index in kept]
        known = ((spot, *pair) for spot, pair in enumerate(found) if pair[1] is not None and math.isfinite(pair[1]))
        return {spot: (x.at(where), y_of(value, y)) for spot, where, value in known if value is not None}

    found = points(line.values)
    if line.band is not None:
        for (where, low), (_, high) in zip(*(points(ends).values() for ends in line.band), strict=False):
            ends = '<line class="whisker arm-{}" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
            yield fill_template(ends, line.look[0], share_x(where), share_x(where), low, high)
    pieces = [*_pieces(found, last=len(kept) - 1)] if times else [([*found], line.is_dashed)]
    for piece, is_dashed in pieces:
        yield polyline((found[spot] for spot in piece), look=line.look, is_dashed=is_dashed)
    step = max(1, math.ceil(len(found) / _MARKS))
    marked = {*[*found][(2 * place) % step :: step], *(piece[0] for piece, _ in pieces if len(piece) == 1)}
    few = {spot for spot in found if line.counts is not None and line.counts[kept[spot]] < FEW}
    for spot in sorted(marked | few):
        yield mark(*found[spot], look=line.look, size=9.0, is_hollow=spot in few)


def _pieces(spots: Iterable[int], *, last: int) -> Iterator[tuple[list[int], bool]]:
    """Yield (consecutive places, whether their line is dashed). last: place whose step of time is not over."""
    run: list[int] = []
    for spot in spots:
        if run and spot != run[-1] + 1:
            yield run, False
            run = []
        run.append(spot)
    if len(run) > 1 and run[-1] == last:
        yield run[:-1], False
        yield run[-2:], True
    else:
        yield run, False

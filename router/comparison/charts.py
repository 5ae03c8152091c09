"""Pictures of an assessment: how ways of answering compare, at which cost, and how it is learned."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from markupsafe import Markup

from ragbandit.router.comparison import NOT_KNOWN, SAME_COST, Comparison, Difference, Verdict, plots, words
from ragbandit.router.comparison.assessment import FrontierPoint, LearningCurve, LineChart, NumberTable, Plane
from ragbandit.router.comparison.axes import number_scale
from ragbandit.router.comparison.plots import Bar, Line, Look, Picture
from ragbandit.shared.texts.formats import decimal, number, one_line, percent

#: a mean of fewer questions than this is mostly chance
_FIRST: Final = 20
#: largest number of break-evens that are marked in a picture
_VERTICALS: Final = 3
#: looks of the lines of policies (cold, warm) and of the best fixed arm, and of the points "served" and "in use"; the
#: first arms have other colours
_POLICIES: Final[tuple[Look, ...]] = ((5, 0), (6, 1), (4, 2), (3, 4), (2, 5), (1, 6), (0, 7))
_FIXED: Final[Look] = (7, 3)
_LOOKS: Final[dict[str, Look]] = {"served": (6, plots.RING), "in use": (5, plots.RING)}
#: least width of a plot with names next to its points, and width of a letter, in pixels
_WIDE, _LETTER = 480.0, 7.0


def forest(comparisons: Sequence[Comparison]) -> Picture | None:
    """Reward, quality and cost of each comparison as intervals on common axes; an estimate only if better or worse.

    None if no interval is known.
    """
    unit, first = comparisons[0].unit, comparisons[0].first
    is_shared = all(one.first == first for one in comparisons)
    named = f"{first} minus the alternative" if is_shared else "the first way minus the second one"
    cost = f"Cost per question, {unit}" if unit != "cost" else "Cost per question"
    columns = {
        "Reward per question": [_bar(c.reward, c.verdict) for c in comparisons],
        "Quality per question": [_bar(c.quality, c.quality_verdict) for c in comparisons],
        cost: [_cost_bar(c.cost, unit=unit) for c in comparisons],
    }
    known = {head: cells for head, cells in columns.items() if any(cell.low is not None for cell in cells)}
    if not known:
        return None
    return plots.draw_bars(
        "Difference in reward, quality and cost",
        names=words.against(comparisons),
        states=[(words.COLOURS[c.verdict], c.verdict) for c in comparisons],
        columns=known,
        units={cost: unit},
        alt="; ".join(words.sentence(comparison) for comparison in comparisons),
        note=f"A bar is the interval of {named}, with "
        f"{percent(round(comparisons[0].confidence, 3))} confidence; 0 is no difference. A triangle is the estimate of "
        "a known difference; a dashed bar is not known yet.",
    )


def _bar(value: Difference, verdict: Verdict) -> Bar:
    text = words.difference(value)
    if text == NOT_KNOWN:
        return Bar(text=text)
    point = value.estimate if verdict in ("better", "worse") else None
    return Bar(text=text, kind=words.COLOURS[verdict], low=value.low, high=value.high, point=point)


def _change(amount: float | None, *, sign: str) -> str:
    plus = "" if not amount else "+" if amount > 0.0 else "-"
    return number(None) if amount is None else f"{plus}{sign}{number(abs(amount), 2)}"


def _cost_bar(cost: Difference, *, unit: str) -> Bar:
    """The bar of a cost: the same or less is good, more is bad. Numbers have two digits; the title has the unit."""
    sign = "$" if unit == "dollars" else ""
    if cost.low is None or cost.high is None:
        return Bar(text=NOT_KNOWN)
    low, middle, high = (_change(end, sign=sign) for end in (cost.low, cost.estimate, cost.high))
    is_same = max(-cost.low, cost.high) <= SAME_COST * (cost.second or 0.0)
    kind = "good" if is_same or cost.high < 0.0 else "bad" if cost.low > 0.0 else "busy"
    if is_same or kind == "busy":
        return Bar(text=f"{low} to {high}", kind=kind, low=cost.low, high=cost.high)
    return Bar(text=f"{middle} ({low} to {high})", kind=kind, low=cost.low, high=cost.high, point=cost.estimate)


def frontier(points: Sequence[FrontierPoint], *, unit: str, signs: plots.ArmSigns, note: str = "") -> Picture | None:
    """Quality against cost per question: arms, what was served, and policies; None without points."""
    cost = "Cost" if unit == "cost" else f"Cost, {unit}"
    whole = Plane(title="Quality against cost per question", quality="Quality", cost=cost, points=tuple(points))
    picture = plane(whole, unit=unit, signs=signs)
    return picture and replace(picture, note=note)


def plane(drawn: Plane, *, unit: str = "cost", signs: plots.ArmSigns) -> Picture | None:
    """A measure of quality against a cost; None without points."""
    points = [point for point in drawn.points if math.isfinite(point.quality) and math.isfinite(point.cost)]
    if not points:
        return None
    x = number_scale([point.cost for point in points], unit=unit, room=0.08)
    y = number_scale([point.quality for point in points], room=0.12)
    places = [(x.at(point.cost), plots.y_of(point.quality, y)) for point in points]
    inside, entries = list[Markup](), {}
    for point, place in zip(points, places, strict=True):
        look = _LOOKS.get(point.kind) or signs.look(point.name.removeprefix("always "))
        inside.append(plots.mark(*place, look=look, size=14.0))
        entries[point.name] = look
    plot = plots.frame(x, y, inside=[*inside, *_names(points, places=places)])
    body = '<p class="axis-name">{}</p>{}<p class="axis-name below">{} per question</p>{}'
    cells = [(p.name, p.kind, decimal(p.quality), words.amount(p.cost, unit)) for p in points]
    alt = "; ".join(f"{name}: {drawn.quality.lower()} {quality}, cost {amount}" for name, _, quality, amount in cells)
    return Picture(
        title=drawn.title,
        alt=alt,
        body=plots.fill_template(body, drawn.quality, plot, drawn.cost, plots.legend(entries.items())),
        table=NumberTable(
            title=drawn.title, columns=("Way of answering", "Kind", drawn.quality, drawn.cost), rows=tuple(cells)
        ),
    )


def _names(points: Sequence[FrontierPoint], *, places: Sequence[tuple[float, float]]) -> Iterator[Markup]:
    """Yield names next to the marks that have room for one; the legend has all names."""
    taken = [(_WIDE * x - 8.0, _WIDE * x + 8.0, y) for x, y in places]
    # Arms come last: the name of what was served matters more.
    ordered = sorted(zip(points, places, strict=True), key=lambda pair: pair[0].kind == "arm")
    at = {place: [point.name for point, other in ordered if other == place] for _, place in ordered}
    for (x, y), names in at.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        name, side = one_line(names[0]) + more, 1 if x < 0.6 else -1
        ends = sorted((_WIDE * x + 9.0 * side, _WIDE * x + (9.0 + _LETTER * len(name)) * side))
        is_free = not any(ends[0] < right and left < ends[1] and abs(y - top) < 15.0 for left, right, top in taken)
        if is_free and ends[0] >= 0.0 and ends[1] <= _WIDE:
            taken.append((ends[0], ends[1], y))
            text = '<text class="wide" x="{}" y="{:.1f}" dx="{}" dy="4" text-anchor="{}">{}</text>'
            yield plots.fill_template(text, plots.share_x(x), y, 11 * side, "start" if side > 0 else "end", name)


def learning(curves: Sequence[LearningCurve]) -> Picture | None:
    """Mean reward so far of each policy against a fixed arm, after the first _FIRST questions; None if empty."""
    at = sorted({count for curve in curves for count in curve.questions})
    if not at:
        return None
    at = [count for count in at if count >= min(_FIRST, at[-1] / 4)]
    series, fixed = [], list[tuple[LearningCurve, dict[int, float]]]()
    for place, curve in enumerate(curves):
        look = _look(place)
        policy, best = (dict(zip(curve.questions, values, strict=False)) for values in (curve.policy, curve.fixed))
        values, unknown = [policy.get(count) for count in at], [None] * (len(at) - 1)
        band = None if curve.last is None else ([*unknown, curve.last[0]], [*unknown, curve.last[1]])
        series.append(Line(name=f"routing, {curve.name}", values=values, look=look, band=band))
        alike = [drawn for _, drawn in fixed if all(abs(drawn[n] - best[n]) < 1e-9 for n in drawn.keys() & best)]
        if alike:
            alike[0].update(best)
        else:
            fixed.append((curve, best))
    for curve, best in fixed:
        title = curve.against if len(fixed) == 1 else f"{curve.against}, {curve.name}"
        series.append(Line(name=title, values=[best.get(count) for count in at], look=_FIXED, is_dashed=True))
    asked, rated = ([0.0, *map(float, counts)] for counts in (curves[0].questions, curves[0].rated))
    notes = [c.note or _break_even(c) for c in curves]
    return plots.draw_lines(
        "Reward per question so far, learning included",
        xs=[float(count) for count in at],
        series=series,
        unit="reward",
        x_name="Questions",
        # more vertical lines would hide the curves; the note names all break-evens
        verticals=[
            *((float(c.break_even), _break_even(c)) for c in curves if c.break_even),
            *((float(count), what) for c in curves for count, what in c.marks),
        ][:_VERTICALS],
        below=None if asked == rated else lambda count: f"{np.interp(count, asked, rated):,.0f} rated" if count else "",
        note="; ".join(filter(None, notes)),
    )


def _look(place: int) -> Look:
    """The look of a policy's line. The first 56 differ; all differ from the line of the best fixed arm."""
    colour, shape = _POLICIES[place % len(_POLICIES)]
    return colour, (shape + 3 * (place // len(_POLICIES))) % 8


def line_chart(chart: LineChart) -> Picture | None:
    """Lines of several ways over a count; the baseline has the look of the best fixed arm. None if empty."""
    if not chart.at:
        return None
    series = []
    for place, (name, values) in enumerate(chart.lines.items()):
        is_baseline = name == chart.baseline
        look = _FIXED if is_baseline else _look(place)
        series.append(Line(name=name, values=values, look=look, is_dashed=is_baseline))
    at = [float(count) for count in chart.at]
    return plots.draw_lines(chart.title, xs=at, series=series, from_zero=True, x_name=chart.places, note=chart.note)


def _break_even(curve: LearningCurve) -> str:
    if curve.break_even:
        return f"{curve.name}: ahead from {curve.break_even:,}"
    return f"{curve.name}: does not get ahead in these questions"

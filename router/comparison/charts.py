"""Pictures of an assessment: how ways of answering compare, at which price, and how it is learned."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from markupsafe import Markup

from ragbandit.router.comparison import NOT_KNOWN, Comparison, Difference, Verdict, words
from ragbandit.router.comparison.assessment import FrontierPoint, LearningCurve, NumberTable
from ragbandit.router.comparison.axes import number_scale
from ragbandit.router.comparison.plots import (
    HEIGHT,
    RING,
    ArmSigns,
    Bar,
    Line,
    Look,
    Picture,
    bars,
    drawn,
    frame,
    joined,
    legend,
    lines,
    mark,
    share_x,
    stretched,
    y_of,
)
from ragbandit.shared.formats import decimal, number, one_line, percent

#: questions before which a mean so far is mostly chance
_FIRST: Final = 20
#: looks of lines and points in colours that the first arms do not have: the policy (cold, warm), the best fixed arm;
#: what was served, the policy at other prices and at the present one
_POLICIES: Final[tuple[Look, ...]] = ((5, 0), (6, 1), (4, 2))
_FIXED: Final[Look] = (7, 3)
_LOOKS: Final[dict[str, Look]] = {"served": (6, RING), "price": (5, 0), "in use": (5, RING)}
#: smallest difference in quality that is worth a sentence
_SEEN: Final = 0.005
_OTHER_PRICES: Final = "the policy at other prices"
#: least width of a plot with names next to its points, and width of a letter, in pixels
_WIDE, _LETTER = 480.0, 7.0


def forest(comparisons: Sequence[Comparison]) -> Picture:
    """Reward, quality and cost of each comparison as intervals on common axes; points only with a verdict."""
    firsts = {comparison.first for comparison in comparisons}
    shared = f"{firsts.pop()} against each alternative" if len(firsts) == 1 else ""
    unit = next((comparison.unit for comparison in comparisons), "cost")
    cost = f"Cost per question, {unit}" if unit != "cost" else "Cost per question"
    columns = {
        "Reward per question": [_bar(c.reward, c.verdict) for c in comparisons],
        "Quality per question": [_bar(c.quality, c.quality.verdict()) for c in comparisons],
        cost: [_cost_bar(c) for c in comparisons],
    }
    confidence = percent(round(next((c.confidence for c in comparisons), 0.95), 3))
    return bars(
        shared or "Each comparison",
        names=[f"against {c.second}" if shared else f"{c.first} against {c.second}" for c in comparisons],
        states=[(words.COLOURS[c.verdict], c.verdict) for c in comparisons],
        columns={head: cells for head, cells in columns.items() if any(cell.low is not None for cell in cells)},
        units={cost: unit},
        alt="; ".join(words.sentence(comparison) for comparison in comparisons),
        note=f"A bar is the interval of the difference, with {confidence} confidence; 0 is no difference. "
        "A triangle is the estimate of a known difference; a dashed bar is not known yet.",
    )


def _bar(value: Difference, verdict: Verdict) -> Bar:
    text = words.difference(value)
    if text == NOT_KNOWN:
        return Bar(text=text)
    point = value.estimate if verdict in ("better", "worse") else None
    return Bar(text=text, kind=words.COLOURS[verdict], low=value.low, high=value.high, point=point)


def _cost_bar(comparison: Comparison) -> Bar:
    """A cost has no margin: less is good, more is bad, and the same is as good."""
    cost, change = comparison.cost, words.cost_change(comparison.cost)
    if cost.low is None or cost.high is None:
        return Bar(text=NOT_KNOWN)
    low, middle, high = (_signed(end) for end in (cost.low, cost.estimate, cost.high))
    if change is None or change == 0.0:
        return Bar(text=f"{low} to {high}", kind="busy" if change is None else "good", low=cost.low, high=cost.high)
    kind = "bad" if change > 0.0 else "good"
    return Bar(text=f"{middle} ({low} to {high})", kind=kind, low=cost.low, high=cost.high, point=cost.estimate)


def _signed(value: float | None) -> str:
    """Two significant digits; the unit is in the column's title."""
    text = number(value, 2)
    return f"+{text}" if value is not None and value > 0.0 else text


def frontier(points: Sequence[FrontierPoint], *, unit: str, signs: ArmSigns) -> Picture | None:
    """Quality against cost per question: arms, what was served, and the policy at other prices; None without points."""
    points = [point for point in points if math.isfinite(point.quality) and math.isfinite(point.cost)]
    if not points:
        return None
    x = number_scale([point.cost for point in points], unit=unit, room=0.08, least=5)
    y = number_scale([point.quality for point in points], room=0.12)
    looks = [
        signs.look(point.name.removeprefix("always ")) if point.kind == "arm" else _LOOKS[point.kind]
        for point in points
    ]
    places = [(x.at(point.cost), y_of(point.quality, y)) for point in points]
    policy = sorted(place for place, point in zip(places, points, strict=True) if point.kind in ("price", "in use"))
    inside = [stretched(policy, kind="line arm-5")] if len(policy) > 1 else []
    inside += [
        mark(*place, look=look, size=8.0 if point.kind == "price" else 14.0)
        for place, point, look in zip(places, points, looks, strict=True)
    ]
    names = [_OTHER_PRICES if point.kind == "price" else point.name for point in points]
    title, unit_of_cost = "Quality against cost per question", "Cost" if unit == "cost" else f"Cost, {unit}"
    return Picture(
        title=title,
        alt="; ".join(f"{p.name}: quality {decimal(p.quality)}, cost {words.amount(p.cost, unit)}" for p in points),
        body=joined(
            (
                drawn('<p class="axis-name">Quality</p>'),
                frame(x, y, inside=[*inside, *_names(points, places=places)]),
                drawn('<p class="axis-name below">{} per question</p>', unit_of_cost),
                legend(dict(zip(names, looks, strict=True)).items()),
            )
        ),
        table=NumberTable(
            title=title,
            columns=("Way of answering", "Kind", "Quality", unit_of_cost),
            rows=tuple((p.name, p.kind, decimal(p.quality), words.amount(p.cost, unit)) for p in points),
        ),
        note=more_buys(points, unit=unit),
    )


def _names(points: Sequence[FrontierPoint], *, places: Sequence[tuple[float, float]]) -> Iterator[Markup]:
    """Yield names next to the marks that have room for one; the legend has all names."""
    taken = [(_WIDE * x - 8, y - 8, _WIDE * x + 8, y + 8) for x, y in places]
    for point, (x, y) in zip(points, places, strict=True):
        if point.kind == "price":
            continue
        name = one_line(point.name)
        wide, left = _LETTER * len(name), _WIDE * x
        for anchor, dx, dy in (("start", 11, 4), ("end", -11, 4), ("middle", 0, -12), ("middle", 0, 22)):
            start = left + dx - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
            box = (start, y + dy - 12, start + wide, y + dy + 4)
            inside = box[0] >= 0.0 and box[2] <= _WIDE and box[1] >= 0.0 and box[3] <= HEIGHT
            if inside and not any(
                box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3] for other in taken
            ):
                taken.append(box)
                text = '<text class="wide" x="{}" y="{:.1f}" dx="{}" text-anchor="{}">{}</text>'
                yield drawn(text, share_x(x), y + dy, dx, anchor, name)
                break


def more_buys(points: Sequence[FrontierPoint], *, unit: str) -> str:
    """What a higher cost would buy and a lower cost lose, in words; "" if no other price of the policy shows it."""
    present = next((p for kind in ("in use", "served") for p in points if p.kind == kind), None)
    if present is None:
        return ""
    prices = [p for p in points if p.kind == "price"]
    more = [p for p in prices if p.cost > present.cost and p.quality >= present.quality + _SEEN]
    less = [p for p in prices if p.cost < present.cost and p.quality <= present.quality - _SEEN]
    texts = []
    for verb, others in (("more a question buys", more), ("less a question loses", less)):
        if others:
            other = min(others, key=lambda p: abs(p.cost - present.cost))
            cost, quality = abs(other.cost - present.cost), abs(other.quality - present.quality)
            price = float(f"{cost / quality:.2g}")
            each = f"{words.amount(price, unit)} for each right answer"
            texts.append(f"{words.amount(cost, unit)} {verb} about {decimal(quality)} of quality ({each})")
    return f"At other prices of cost: {'; '.join(texts)}." if texts else ""


def learning(curves: Sequence[LearningCurve]) -> Picture | None:
    """Mean reward so far of each policy against the best fixed arm, after the first _FIRST questions; None if empty."""
    at = sorted({count for curve in curves for count in curve.questions})
    if not at:
        return None
    at = [count for count in at if count >= min(_FIRST, at[-1] / 4)]
    series, fixed = [], dict[tuple[float | None, ...], str]()
    for place, curve in enumerate(curves):
        policy, best = (dict(zip(curve.questions, values, strict=False)) for values in (curve.policy, curve.fixed))
        look = _POLICIES[place % len(_POLICIES)]
        series.append(Line(name=f"routing, {curve.name}", values=[policy.get(count) for count in at], look=look))
        fixed.setdefault(tuple(best.get(count) for count in at), curve.name)
    for values, name in fixed.items():
        name = "best fixed arm" if len(fixed) == 1 else f"best fixed arm, {name}"
        series.append(Line(name=name, values=values, look=_FIXED, is_dashed=True))
    even = [(float(c.break_even), f"{c.name}: ahead from {c.break_even:,}") for c in curves if c.break_even is not None]
    never = [f"{curve.name}: does not get ahead in these questions" for curve in curves if curve.break_even is None]
    return lines(
        "Reward per question so far, learning included",
        at=[float(count) for count in at],
        series=series,
        unit="reward",
        places="Questions",
        verticals=even,
        below=lambda count: f"{_rated(curves[0], count):,} rated" if count else "",
        note="; ".join(never),
    )


def _rated(curve: LearningCurve, questions: float) -> int:
    """Ratings at a number of questions, interpolated."""
    known = [(0, 0), *zip(curve.questions, curve.rated, strict=False)]
    for (before, low), (after, high) in pairwise(known):
        if before <= questions <= after:
            return round(low + (high - low) * (questions - before) / max(after - before, 1))
    return known[-1][1]

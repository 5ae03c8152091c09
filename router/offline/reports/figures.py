"""Figures of a replay: differences, rewards over time, arms, weights and segments."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING

from ragbandit.router.offline.charts import BLUE, GREEN, GREY, INK, PAPER, RED, finish, svg
from ragbandit.router.offline.replay.results import (
    CandidateResult,
    EstimateWithInterval,
    Histogram,
    ReplayResult,
    moment,
)
from ragbandit.router.offline.reports.phrases import (
    cell,
    compared,
    estimate,
    interval,
    judged,
)
from ragbandit.shared.formats import number, one_line, percent
from ragbandit.shared.types import ArmName

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_VERDICTS = {"better": GREEN, "worse": RED}
#: inches: as wide as a telephone, so that the letters stay readable there
_WIDTH = 5.0
#: inches for a row with its name above it, for a row with its name beside it, for the axis below
_TALL, _LOW, _AXIS = 0.5, 0.19, 0.55
#: letters of a name above and beside a row
_LONG, _SHORT = 48, 16
#: rows of segments and of arms in one picture
_MOST = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayChart:
    """A figure with what it says in words."""

    title: str
    #: one <svg> element that asks for nothing from elsewhere
    svg: str
    #: how to read it; plain text, not yet escaped
    caption: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _FigureRow:
    name: str
    value: EstimateWithInterval
    colour: str = BLUE
    #: the interval is all that is possible, the value nothing: a dashed bar without a dot
    open: bool = False


def drawn(replayed: ReplayResult) -> list[ReplayChart]:
    """Every figure that the replay has numbers for.

    Raises ConfigError where matplotlib is missing.
    """
    charts = (_differences(replayed), _over_time(replayed), _shares(replayed), _weights(replayed), *_segments(replayed))
    return [one for one in charts if one is not None]


def _differences(replayed: ReplayResult) -> ReplayChart | None:
    rows = []
    for candidate in compared(replayed):
        assert candidate.difference is not None
        verdict = candidate.verdict
        rows.append(
            _FigureRow(
                name=f"{_cut(candidate.name, letters=_LONG - len(verdict) - 2)}: {verdict}",
                value=candidate.difference,
                colour=_VERDICTS.get(verdict, GREY),
                open=verdict == "cannot be judged",
            )
        )
    if not rows:
        return None
    baseline = one_line(replayed.baseline)
    dashed = " Dashed: no estimate, only the possible range." if any(row.open for row in rows) else ""
    return ReplayChart(
        title=f"Against {baseline}",
        svg=_interval_svg("differences", rows),
        caption=(
            f"Difference in reward per question to {baseline}: higher (right) or lower (left). The dot is the "
            f"estimate, the bar its {percent(replayed.plan.confidence)} confidence interval. If the bar crosses 0, the "
            f"sign of the difference is not known yet.{dashed}"
        ),
    )


def _over_time(replayed: ReplayResult) -> ReplayChart | None:
    candidates = [candidate for candidate in judged(replayed) if candidate.over_time]
    if not candidates:
        return None
    baseline = one_line(replayed.baseline)
    texts = [f"{one_line(c.name)}: {', '.join(estimate(part.value) for part in c.over_time)}" for c in candidates]
    return ReplayChart(
        title="Reward over time",
        svg=svg(
            "over-time",
            label="; ".join(texts),
            size=(_WIDTH, 1.35 * len(candidates) + _AXIS + 0.25),
            draw=lambda figure: _draw_over_time(figure, candidates, baseline=baseline),
        ),
        caption=(
            f"Reward per question in consecutive parts of the log: the candidate (blue) and {baseline} (grey, dashed). "
            f"Blue band: {percent(replayed.plan.confidence)} confidence interval of the part. No band: too few "
            "effective rows. It shows whether a difference is constant over time."
        ),
    )


def _shares(replayed: ReplayResult) -> ReplayChart | None:
    logged = {arm.name: arm.drawn for arm in replayed.arms}
    candidates = compared(replayed)
    if not candidates:
        return None
    groups = [(candidate, _largest(candidate, logged=logged)) for candidate in candidates]
    texts = [
        f"{one_line(c.name)}: " + ", ".join(f"{arm} {percent(share)} (log {percent(was)})" for arm, share, was in bars)
        for c, bars in groups
    ]
    return ReplayChart(
        title="Which arms are chosen",
        svg=svg(
            "shares",
            label="; ".join(texts),
            size=(_WIDTH, sum(_LOW * len(bars) + 0.36 for _, bars in groups) + _AXIS),
            draw=lambda figure: _draw_shares(figure.subplots(), groups),
        ),
        caption=(
            "Share of each arm: candidate (bar) and log (vertical mark). Where they differ much, few logged questions "
            "tell something about the candidate."
        ),
    )


def _weights(replayed: ReplayResult) -> ReplayChart | None:
    candidates = [candidate for candidate in compared(replayed) if sum(candidate.weights.histogram.counts)]
    if not candidates:
        return None
    texts = [
        f"{one_line(c.name)}: largest {number(c.weights.largest)}, "
        f"worth {number(c.weights.effective_rows)} of {number(replayed.rows)} questions"
        for c in candidates
    ]
    return ReplayChart(
        title="Importance weights",
        svg=svg(
            "weights",
            label="; ".join(texts),
            size=(_WIDTH, 1.15 * len(candidates) + _AXIS),
            draw=lambda figure: _draw_weights(figure, candidates, rows=replayed.rows),
        ),
        caption=(
            "Weight of a logged question: above 1 where the candidate chooses the logged arm more often than the log "
            "did, below 1 where less often. If all are near 1, the log is informative about the candidate; if a few "
            "are large, the estimate depends on few questions. Weights of 0 are not shown."
        ),
    )


def _segments(replayed: ReplayResult) -> Iterator[ReplayChart]:
    """A figure per field and candidate."""
    for rank, candidate in enumerate(judged(replayed)):
        for field, segments in candidate.segments.items():
            rows = [
                _FigureRow(
                    name=f"{_cut(one.name, letters=_LONG - 20)} ({number(one.rows)} questions)", value=one.difference
                )
                for one in segments[:_MOST]
            ]
            if not rows:
                continue
            left = len(segments) - len(rows)
            rest = f" The {len(rows)} largest groups are shown, {number(left)} are not." if left else ""
            yield ReplayChart(
                title=f"{one_line(candidate.name)} by {one_line(field)}",
                svg=_interval_svg(f"segments-{rank}-{field}", rows),
                caption=(
                    f"Difference in reward per question to {one_line(replayed.baseline)} per group: higher (right) or "
                    f"lower (left). Bar: {percent(replayed.plan.confidence)} confidence interval of each group by "
                    "itself, so that among many groups a few miss the true value. No bar: too few effective rows for "
                    f"an interval.{rest}"
                ),
            )


def _interval_svg(name: str, rows: Sequence[_FigureRow]) -> str:
    texts = [
        f"{row.name}: " + (" to ".join(interval(row.value, sign="+") or ()) if row.open else cell(row.value, sign="+"))
        for row in rows
    ]
    height, label = _TALL * len(rows) + _AXIS, "; ".join(texts)
    return svg(name, label=label, size=(_WIDTH, height), draw=lambda figure: _draw_intervals(figure.subplots(), rows))


def _draw_intervals(axes: "Axes", rows: Sequence[_FigureRow]) -> None:
    """Dots with bars, each under its name, around the line at 0."""
    axes.axvline(0.0, color=INK, linewidth=1.0)
    seen: tuple[float, float] | None = None
    for level, row in sorted(enumerate(rows), key=lambda one: one[1].open):
        if row.open and seen is None:
            seen = axes.get_xlim()  # what is possible is far wider than what is known: it may run out of the picture
        if interval(row.value):
            line = (0, (3, 2)) if row.open else "-"
            ends = (row.value.low or 0.0, row.value.high or 0.0)
            axes.plot(ends, [level, level], color=row.colour, linewidth=1.6 if row.open else 3, linestyle=line)
        if not row.open and math.isfinite(row.value.value):
            axes.plot(row.value.value, level, "o", color=row.colour, markersize=6)
        _write(axes, row.name, height=level - 0.4)
    if seen and not all(row.open for row in rows):
        axes.set_xlim(seen)
    axes.set_ylim(len(rows) - 0.5, -0.85)
    axes.set_yticks([])
    axes.set_xlabel("difference in reward per question")
    _finish(axes)


def _write(axes: "Axes", name: str, *, height: float) -> None:
    """A name at the left edge, on a ground that keeps lines from running through it."""
    ground = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.0}
    axes.text(0.0, height, name, transform=axes.get_yaxis_transform(), va="center", color=INK, bbox=ground, zorder=5)


def _draw_over_time(figure: "Figure", candidates: Sequence[CandidateResult], *, baseline: str) -> None:
    grid = figure.subplots(len(candidates), 1, sharex=True, sharey=True, squeeze=False)
    dated = all(moment(at) is not None for c in candidates for part in c.over_time for at in (part.begin, part.end))
    for axes, candidate in zip(grid[:, 0], candidates, strict=True):
        parts = candidate.over_time
        middles = [((part.begin or 0.0) + (part.end or 0.0)) / 2.0 for part in parts]
        places = (
            [seconds / 86_400.0 for seconds in middles] if dated else [1.0 + number for number in range(len(parts))]
        )
        bands = [(part.value.low, part.value.high) if interval(part.value) else (math.nan, math.nan) for part in parts]
        lows, highs = zip(*bands, strict=True)
        axes.fill_between(places, lows, highs, color=BLUE, alpha=0.25, linewidth=0)
        axes.plot(places, [part.value.value for part in parts], "o-", color=BLUE, markersize=3.5, label="candidate")
        was = [part.baseline for part in parts]
        axes.plot(places, was, "s--", color=GREY, markersize=2.5, label=_cut(baseline, letters=24))
        axes.set_title(_cut(candidate.name, letters=_LONG))
        _finish(axes)
    last = grid[-1, 0]
    if dated:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator(tz=UTC, minticks=2, maxticks=5)  # type: ignore[no-untyped-call]
        last.xaxis.set_major_locator(locator)
        formats = ["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%S"]  # of years, months, days, hours, minutes, seconds
        last.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC, formats=formats))  # type: ignore[no-untyped-call]
    else:
        last.set_xlabel("stretch of the log")
    figure.legend(*last.get_legend_handles_labels(), loc="outside upper left", ncols=2, frameon=False)


def _draw_shares(axes: "Axes", groups: Sequence[tuple[CandidateResult, Sequence[tuple[str, float, float]]]]) -> None:
    level, ticks, names = 0.0, [], []
    for candidate, bars in groups:
        _write(axes, _cut(candidate.name, letters=_LONG - 12), height=level)
        for arm, share, was in bars:
            level += 1.0
            axes.barh(level, 100.0 * share, height=0.72, color=BLUE)
            axes.plot([100.0 * was] * 2, [level - 0.42, level + 0.42], color=INK, linewidth=2.2)
            ticks.append(level)
            names.append(_cut(arm, letters=_SHORT))
        level += 1.9
    axes.set_yticks(ticks, names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(level - 1.2, -0.8)
    axes.set_xlim(0.0, 101.0)
    axes.set_xlabel("% of the decisions")
    _finish(axes)


def _draw_weights(figure: "Figure", candidates: Sequence[CandidateResult], *, rows: int) -> None:
    grid = figure.subplots(len(candidates), 1, sharex=True, squeeze=False)
    bins = [each for c in candidates for each in _bins(c.weights.histogram)]
    low, high = min(0.0, *(left for left, _, _ in bins)) - 0.1, max(0.0, *(right for _, right, _ in bins)) + 0.1
    for axes, candidate in zip(grid[:, 0], candidates, strict=True):
        for left, right, counted in _bins(candidate.weights.histogram):
            axes.bar(left, 100.0 * counted / rows, width=right - left, align="edge", color=BLUE)
        axes.axvline(0.0, color=INK, linewidth=1.0)
        largest = number(candidate.weights.largest)
        axes.set_title(f"{_cut(candidate.name, letters=_LONG - 24)}: largest weight {largest}")
        axes.set_xlim(low, high)
        ticks = _ticks(low, high=high)
        axes.set_xticks([math.log10(tick) for tick in ticks], [f"{tick:,g}" for tick in ticks])
        axes.locator_params(axis="y", nbins=3)
        axes.set_ylim(bottom=0.0)
        _finish(axes)
    grid[-1, 0].set_xlabel("weight of a question (1: counts once)")
    figure.supylabel("% of the questions")


def _finish(axes: "Axes") -> None:
    finish(axes, grid="x")
    axes.spines["left"].set_visible(False)


def _bins(histogram: Histogram) -> list[tuple[float, float, int]]:
    """(begin, end, rows) of the bins that are not empty."""
    edges = histogram.edges
    return [each for each in zip(edges[:-1], edges[1:], histogram.counts, strict=True) if each[2]]


def _ticks(low: float, *, high: float) -> list[float]:
    """Round weights between 10**low and 10**high, few enough to stand side by side."""
    steps = (1.0, 2.0, 5.0) if high - low < 1.5 else (1.0, 3.0) if high - low < 3.0 else (1.0,)
    decades = range(math.floor(low), math.ceil(high) + 1, 2 if high - low > 6.0 else 1)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    return [tick for tick in ticks if low <= math.log10(tick) <= high]


def _largest(candidate: CandidateResult, *, logged: dict[ArmName, float]) -> list[tuple[str, float, float]]:
    """(arm, the candidate's share, the log's), those beyond `_MOST` together, the least used last."""
    shares = [(arm, candidate.shares.get(arm, 0.0), logged.get(arm, 0.0)) for arm in {**logged, **candidate.shares}]
    if len(shares) <= _MOST:
        return [(one_line(arm), share, was) for arm, share, was in shares]
    shares.sort(key=lambda one: -max(one[1:]))
    rest = shares[_MOST - 1 :]
    others = (f"{len(rest)} others", sum(share for _, share, _ in rest), sum(was for _, _, was in rest))
    return [*((one_line(arm), share, was) for arm, share, was in shares[: _MOST - 1]), others]


def _cut(name: str, *, letters: int) -> str:
    """The name, or its beginning and end where it is too long: that is where names differ."""
    name = one_line(name)
    half = (letters - 1) // 2
    return name if len(name) <= letters else f"{name[: letters - 1 - half]}…{name[-half:]}"

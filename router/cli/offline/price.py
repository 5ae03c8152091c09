"""`ragbandit price`: what each price of an answer buys on one's own log, as a table and a picture, and a proposal."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.markup import escape

from ragbandit.router.cli.console import ConfigOption, JsonOption, bars, console, errors, print_json, show_rows
from ragbandit.router.learning.monitoring.price import LEAST_LABELS, implied, in_words, proposal
from ragbandit.router.offline.charts import BLUE, RED, check_png, finish, png
from ragbandit.router.offline.replay.frontier import price_frontier
from ragbandit.router.offline.replay.opening import open_log
from ragbandit.router.offline.replay.results import CandidateResult, EstimateWithInterval
from ragbandit.shared.evidence import NOT_TRIED
from ragbandit.shared.formats import number, one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def price(
    log: Annotated[
        str | None, typer.Option(help="a file of decisions with rewards, as of replay; default the store")
    ] = None,
    format_: Annotated[str | None, typer.Option("--format", help="of a file whose name does not tell it")] = None,
    folds: Annotated[int, typer.Option(min=2, help="folds of the questions for cross-fitting")] = 5,
    plot: Annotated[Path | None, typer.Option(help="draw the frontier as FILE.png")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw the frontier of a log: quality and cost of the learned policy at each weight of cost, and of each arm.

    It marks reward.weight and the named prices, and proposes a weight. How to choose one: docs/price.md.
    """
    if plot is not None:
        check_png(plot)
    opened = open_log(log, format=format_, config=config)
    with bars(errors) as progress:
        result, price = price_frontier(opened, settings=opened.settings, folds=folds, progress=progress)
    words = in_words(opened.settings.reward)
    few = [f"no weight is proposed: that takes {LEAST_LABELS} labels of each of two arms"]
    words += few if price is None else [proposal(price), implied(price)]
    if plot is not None:
        png(plot, size=(7.0, 4.5), draw=lambda figure: _draw(figure, [one for one in result.candidates if _tried(one)]))
    if as_json:
        print_json({"words": words, **result.as_json()})
        return
    name = opened.settings.policy.name
    title = f"{name} at each weight of cost, learned from {one_line(result.log)} ({result.rows:,} rows)"
    console.print(escape(title), highlight=False)
    show_rows(("weight", "quality", "cost", "effective rows"), map(_cells, result.candidates), none="")
    for line in [*words, *result.faults, *result.notes]:
        console.print(escape(one_line(line)), soft_wrap=True, highlight=False)


def _tried(candidate: CandidateResult) -> bool:
    return candidate.missing is None


def _cells(one: CandidateResult) -> list[str]:
    effective = f"{one.weights.effective_rows:,.0f}"
    if not _tried(one):
        return [one.name, NOT_TRIED, NOT_TRIED, effective]
    return [one.name, _estimate(one.quality), _estimate(one.cost), effective]


def _estimate(one: EstimateWithInterval) -> str:
    ends = "" if one.low is None or one.high is None else f" [{number(one.low)}, {number(one.high)}]"
    return number(one.value) + ends


def _draw(figure: "Figure", candidates: Sequence[CandidateResult]) -> None:
    axes = figure.subplots()
    line = [(one.cost.value, one.quality.value) for one in candidates if not one.name.startswith("always ")]
    axes.plot(*zip(*line, strict=True), color=BLUE, linewidth=1.5)
    for one in candidates:
        (_, _, name), colour = one.name.partition(" "), RED if one.name.startswith("always ") else BLUE
        if name:
            x, y = one.cost, one.quality
            axes.plot(np.array([x.low, x.high], dtype=float), [y.value] * 2, color=colour, linewidth=0.8)
            axes.plot([x.value] * 2, np.array([y.low, y.high], dtype=float), color=colour, linewidth=0.8)
            axes.plot(x.value, y.value, "o", color=colour)
            axes.annotate(one_line(name), (x.value, y.value), xytext=(6, -14), textcoords="offset points")
    axes.set(xlabel="cost of a question, in units of reward.cost", ylabel="quality")
    finish(axes)

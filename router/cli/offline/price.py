"""`ragbandit price`: what each price of an answer buys on one's own log, as a table and a picture, and a proposal."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from markupsafe import escape as html
from rich.markup import escape

from ragbandit.router.cli.console import ConfigOption, JsonOption, bars, console, errors, print_json, show_rows
from ragbandit.router.learning.monitoring.price import LEAST_LABELS, implied, in_words, proposal
from ragbandit.router.offline.charts import BLUE, RED, finish, svg
from ragbandit.router.offline.replay.frontier import PriceFrontier, PricePoint, price_frontier
from ragbandit.router.offline.replay.opening import open_log
from ragbandit.router.offline.replay.results import EstimateWithInterval
from ragbandit.router.offline.reports.page import check_page
from ragbandit.shared.evidence import FEWEST_EFFECTIVE
from ragbandit.shared.files.atomic import whole_file
from ragbandit.shared.formats import number, one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLES = ("price", "weight", "quality", "cost", "effective rows")


def price(
    log: Annotated[
        str | None, typer.Option(help="a file of decisions with rewards, as of replay; default the store")
    ] = None,
    format_: Annotated[str | None, typer.Option("--format", help="of a file whose name does not tell it")] = None,
    folds: Annotated[int, typer.Option(min=2, help="folds of the questions for cross-fitting")] = 5,
    report: Annotated[Path | None, typer.Option(help="write the picture and the table as FILE.html")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw the frontier of a log: quality and cost of the learned policy at each weight of cost, and of each arm.

    It marks reward.weight and the named prices, and proposes a weight. How to choose one: docs/price.md.
    """
    if report is not None:
        check_page(report)
    opened = open_log(log, format=format_, config=config)
    with bars(errors) as progress:
        found = price_frontier(opened, settings=opened.settings, folds=folds, progress=progress)
    too_few = [f"no weight is proposed: that takes {LEAST_LABELS} labels of each of two arms"]
    proposed = too_few if found.price is None else [proposal(found.price), implied(found.price)]
    words = [*in_words(opened.settings.reward), *proposed]
    if report is not None:
        with whole_file(report, durable=False) as beside:
            beside.write_text(_page(found, words=words), encoding="utf-8")
    if as_json:
        print_json(asdict(found) | {"words": words})
        return
    console.print(escape(_title(found)), highlight=False)
    show_rows(_TITLES, [_cells(point) for point in found.points], none="")
    for line in [*words, *found.notes]:
        console.print(escape(one_line(line)), soft_wrap=True, highlight=False)


def _title(found: PriceFrontier) -> str:
    return f"{found.policy} at each weight of cost, learned from {one_line(found.log)} ({found.rows:,} rows)"


def _cells(point: PricePoint) -> list[str]:
    weight = "" if point.weight is None else number(point.weight)
    effective = f"{point.effective:,.0f}"
    if point.effective < FEWEST_EFFECTIVE:
        return [point.name, weight, "not tried enough", "not tried enough", f"{effective} of {FEWEST_EFFECTIVE} needed"]
    return [point.name, weight, _estimate(point.quality), _estimate(point.cost), effective]


def _estimate(one: EstimateWithInterval) -> str:
    ends = "" if one.low is None or one.high is None else f" [{number(one.low)}, {number(one.high)}]"
    return number(one.value) + ends


def _page(found: PriceFrontier, *, words: Sequence[str]) -> str:
    """One file without scripts: the picture, the table, the words."""
    points = [one for one in found.points if one.effective >= FEWEST_EFFECTIVE]
    picture = svg("frontier", label=_title(found), size=(7.0, 4.5), draw=lambda figure: _draw(figure, points))
    rows = "".join(f"<tr>{''.join(f'<td>{html(cell)}' for cell in _cells(point))}" for point in found.points)
    lines = "".join(f"<li>{html(one_line(line))}" for line in [*words, *found.notes])
    head = "".join(f"<th>{title}" for title in _TITLES)
    title = html(_title(found))
    return (
        f'<!DOCTYPE html><html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1><figure>{picture}</figure><div><table><tr>{head}{rows}</table></div><ul>{lines}</ul></html>\n"
    )


_STYLE = (
    ":root{--paper:#fff;--ink:#222;--fine:#ddd;color-scheme:light dark}@media(prefers-color-scheme:dark){"
    ":root{--paper:#171717;--ink:#ececec;--fine:#404040}}body{margin:0 auto;padding:1rem;max-width:50rem;"
    "background:var(--paper);color:var(--ink);font:1rem/1.5 system-ui,sans-serif}h1{font-size:1.1rem}figure{margin:0}"
    "svg{width:100%;height:auto}div{overflow-x:auto}table{border-collapse:collapse}"
    "td,th{padding:.3rem .6rem;border-bottom:1px solid var(--fine);text-align:left;white-space:nowrap}"
)


def _draw(figure: "Figure", points: Sequence[PricePoint]) -> None:
    axes = figure.subplots()
    for colour, some in (
        (BLUE, [p for p in points if p.weight is not None]),
        (RED, [p for p in points if p.weight is None]),
    ):
        if colour == BLUE:
            axes.plot([p.cost.value for p in some], [p.quality.value for p in some], color=colour, linewidth=1.5)
        for point in (p for p in some if p.name):
            ends = [
                (one.value if one.low is None else one.low, one.value if one.high is None else one.high)
                for one in (point.cost, point.quality)
            ]
            axes.plot(ends[0], [point.quality.value] * 2, color=colour, linewidth=0.8)
            axes.plot([point.cost.value] * 2, ends[1], color=colour, linewidth=0.8)
            axes.plot(point.cost.value, point.quality.value, "o", color=colour)
            axes.annotate(
                one_line(point.name),
                (point.cost.value, point.quality.value),
                xytext=(6, -14),
                textcoords="offset points",
            )
    axes.set_xlabel("cost of a question, in units of reward.cost")
    axes.set_ylabel("quality")
    finish(axes)

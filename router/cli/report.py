"""Verbs `report`: what the router spent and at what quality against always one arm, and `top`: the same live."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ragbandit.client.replies.status import ArmOverviewReply, OverviewReply
from ragbandit.router.api.schemas.replies import overview_json, report_json
from ragbandit.router.cli.calls import client_of
from ragbandit.router.cli.console import (
    ConfigOption,
    JsonOption,
    KeyOption,
    LabelOption,
    UrlOption,
    console,
    print_json,
    show_rows,
)
from ragbandit.router.cli.store import opened, parse_time, registered_policy
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.learning.status import status
from ragbandit.router.reporting import words
from ragbandit.router.reporting.reading import ReportScope
from ragbandit.router.reporting.report import Line, Report
from ragbandit.router.reporting.report import report as report_in_store
from ragbandit.router.serving.explanations.policy_map import policy_map
from ragbandit.router.serving.overview import overview
from ragbandit.shared.formats import decimal, moment, one_line, percent


def report(
    since: Annotated[str, typer.Option(help="a date, a time or an age: 7d, 4w")] = "7d",
    until: Annotated[str | None, typer.Option(help="a date, a time or an age; default: now")] = None,
    tenant: Annotated[str | None, typer.Option(help="of this tenant alone")] = None,
    against: Annotated[
        str | None, typer.Option(metavar="ARM", help="default: the holdback's arm, the incumbent")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="write it as one page that can be sent")] = None,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """What the router saved, and at what quality, against always one arm, with intervals and a verdict.

    Read from the database: costs of all outcomes, quality of rated answers, the newest 200,000 questions of the time.
    --json prints what /v1/report has.
    """
    now = time.time()
    with opened(config, label=label) as (settings, ledger):
        scope = ReportScope(
            label=ledger.label,
            since=parse_time(since, now=now),
            until=now if until is None else parse_time(until, now=now, field="until"),
            tenant=tenant,
        )
        result = report_in_store(ledger.database, scope, policy=settings.policy, against=against)
        mapped = policy_map(
            ledger.database, label=ledger.label, schema=settings.context, weight=settings.reward.weight, tenant=tenant
        )
        serving, rule = registered_policy(ledger), closing_rule(settings.learning)
        state = status(ledger, serving=serving, rule=rule, now=now).learning
    learning = None if state is None else state.line
    if html is not None:
        from ragbandit.router.api.ui.operation import report_file  # of the service's pages

        html.write_text(report_file(result, now=now, learning=learning, mapped=mapped), encoding="utf-8")
    if as_json:
        print_json(report_json(result, now=now, learning=learning))
        return
    console.print(one_line(words.sentence(result, now=now)), markup=False)
    for title, lines in words.tables(result):
        console.print()
        _table(title, lines, report=result)
    if mapped is not None:
        console.print()
        cells = [[one_line(cell) for cell in leaf.values()] for leaf in mapped.cells]
        show_rows(["What the policy does", "Share", "Arms", "Reward", "For example"], cells, none="")
        console.print(one_line(mapped.sentence), markup=False)
    console.print()
    if learning is not None:
        console.print(one_line(f"- {learning}"), markup=False)
    for note in words.footnotes(result):
        console.print(one_line(f"- {note}"), markup=False)
    if html is not None:
        console.print(f"written to {html}", markup=False)


def _table(title: str, lines: Sequence[Line], *, report: Report) -> None:
    rows = [[one_line(cell) for cell in words.cells(line, report.unit)] for line in lines]
    show_rows([title, *words.COLUMNS], rows, none="")


Read = Callable[[], "OverviewReply"]
#: longest name of an arm that is shown
_LONGEST: Final = 40
#: arms and workers that are shown
_MOST: Final = 40


#: columns of the arms: title, least width of a terminal that shows it, and the cell. A number that is cut off says
#: nothing, so that a narrow terminal does without some
_COLUMNS: Final[tuple[tuple[str, int, Callable[[ArmOverviewReply], str]], ...]] = (
    ("share", 40, lambda arm: percent(arm["share"])),
    ("reward", 0, lambda arm: decimal(arm["totals"]["reward"])),
    ("quality", 110, lambda arm: decimal(arm["totals"]["quality"])),
    ("cost", 80, lambda arm: decimal(arm["totals"]["cost"])),
    ("dollars", 120, lambda arm: f"{arm['totals']['dollars']:.4g}"),
    ("failed", 100, lambda arm: percent(arm["totals"]["failure_share"])),
    ("p50 s", 130, lambda arm: decimal(arm["totals"]["p50_s"])),
    ("p95 s", 90, lambda arm: decimal(arm["totals"]["p95_s"])),
)
#: least width of the arms' names, which are folded
_NARROW: Final = 16


def top(
    hours: Annotated[int, typer.Option(min=1, max=1000, help="the time that is shown, until now")] = 24,
    every: Annotated[float, typer.Option(min=0.5, max=3600, help="seconds between two looks")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="print it once and end; so does a pipe")] = False,
    url: UrlOption = None,
    key_env: KeyOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reward, quality, cost and traffic of each arm, lag, queues and workers; live.

    Refreshed until Ctrl-C. Of a running service with --url; else read from the database. --json prints what
    /v1/overview has.
    """
    with _source(url, key_env=key_env, config=config, hours=hours) as read:
        if as_json:
            print_json(read())
        elif once or not console.is_terminal:
            console.print(screen(read(), hours=hours, now=time.time(), width=console.width))
        else:
            _live(read, hours=hours, every=every)


@contextmanager
def _source(url: str | None, *, key_env: str | None, config: str | None, hours: int) -> Iterator[Read]:
    if url is not None:
        with client_of(url, config=config, key_env=key_env) as client:
            yield lambda: client.overview(since=time.time() - 3600 * hours)
        return

    with opened(config, label=None) as (settings, ledger):
        rule = closing_rule(settings.learning)

        def read() -> OverviewReply:
            now = time.time()
            figures = overview(ledger.database, policy=ledger.label, since=now - 3600 * hours, until=now)
            return overview_json(figures, status=status(ledger, serving=None, rule=rule, now=now))

        yield read


def _live(read: Read, *, hours: int, every: float) -> None:
    with Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(screen(read(), hours=hours, now=time.time(), width=console.width), refresh=True)
                time.sleep(every)
        except KeyboardInterrupt:
            return


def screen(reply: OverviewReply, *, hours: int, now: float, width: int) -> RenderableType:
    """What is shown. Texts of others in it are made harmless, and are no markup. hours: that were asked for."""
    return Group(*_head(reply, hours=hours, now=now), _arms(reply, width=width), *_service(reply))


def _head(reply: OverviewReply, *, hours: int, now: float) -> Iterator[Text]:
    totals = reply["totals"]
    at = moment(now)
    yield _text(f"{reply['policy']}  last {hours} h  {at}", style="bold")
    yield _text(
        f"decided {totals['decided']}  learned {totals['learned']}  reward {decimal(totals['reward'])}  "
        f"quality {decimal(totals['quality'])}  cost {decimal(totals['cost'])}  dollars {totals['dollars']:.4g}  "
        f"failed {percent(totals['failure_share'])}  explored {totals['explored']}"
    )


def _arms(reply: OverviewReply, *, width: int) -> RenderableType:
    if not reply["arms"]:
        return _text("nothing in this time")
    columns = [(title, cell) for title, least, cell in _COLUMNS if width >= least]
    table = Table(box=None, pad_edge=False)
    table.add_column("arm", overflow="fold", min_width=min(_NARROW, max(len(arm["arm"]) for arm in reply["arms"])))
    for title, _ in columns:
        table.add_column(title, justify="right", no_wrap=True)
    for arm in reply["arms"][:_MOST]:
        table.add_row(_text(arm["arm"][:_LONGEST]), *(_text(cell(arm)) for _, cell in columns))
    return table


def _service(reply: OverviewReply) -> Iterator[Text]:
    if reply["learning"] is not None:
        yield _text(f"{reply['learning']['state']}: {reply['learning']['sentence']}")
    lag = f"lag {reply['lag_s']:.1f} s  waiting {reply['waiting']}"
    lag += f"  not yet counted {reply['updates_behind']}" if reply["updates_behind"] else ""
    if reply["behind_s"] > 60.0:
        lag += f"  totals are {reply['behind_s']:.0f} s behind: a learner must run"
    yield _text(lag)
    if reply["queues"] is not None:
        yield _text("queues  " + "  ".join(f"{name} {count}" for name, count in reply["queues"].items()))
    for worker in (reply["workers"] or [])[:_MOST]:
        yield _text(f"worker {worker['queue']} {worker['state']} on {worker['host']}")


def _text(text: str, *, style: str = "") -> Text:
    return Text(one_line(text), style=style)

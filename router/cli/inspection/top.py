"""Verb `top`: what the policy earns and how the service is, live in the terminal."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ragbandit.client.replies.overview import ArmOverviewReply, OverviewReply, TotalsReply
from ragbandit.router.api.schemas.replies import overview_json
from ragbandit.router.cli.calls import client_of
from ragbandit.router.cli.console import (
    ConfigOption,
    JsonOption,
    KeyOption,
    UrlOption,
    console,
    print_json,
)
from ragbandit.router.cli.store import opened
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.learning.status import status
from ragbandit.router.serving.overview import overview
from ragbandit.shared.formats import decimal, moment, one_line, percent

Read = Callable[[], "OverviewReply"]
#: longest name of an arm that is shown
_LONGEST: Final = 40
#: arms and workers that are shown
_MOST: Final = 40
#: columns of the arms
_COLUMNS: Final = (
    "arm",
    "share",
    "reward",
    "quality",
    "cost",
    "dollars",
    "failed",
    "p50 s",
    "p95 s",
    "gain over always using this arm",
)
#: those that a narrow terminal does without, the first of them first
_FIRST_TO_GO: Final = (
    "p50 s",
    "dollars",
    "quality",
    "failed",
    "p95 s",
    "cost",
    "gain over always using this arm",
    "share",
    "reward",
)
#: width of the arms' names from which on they are folded
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
    """Reward, quality, cost, savings and traffic of each arm, lag, queues and workers; live.

    Refreshed until Ctrl-C. Of a running service with --url; else read from the database. --json prints what
    /v1/overview has.
    """
    with _source(url, key_env=key_env, config=config, hours=hours) as read:
        if as_json:
            print_json(read())
        elif once or not console.is_terminal:
            console.print(screen(read(), now=time.time()))
        else:
            _live(read, every=every)


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


def _live(read: Read, *, every: float) -> None:
    with Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(screen(read(), now=time.time()), refresh=True)
                time.sleep(every)
        except KeyboardInterrupt:
            return


def screen(reply: OverviewReply, *, now: float) -> RenderableType:
    """What is shown. Texts of others in it are made harmless, and are no markup."""
    return Group(*_head(reply, now=now), _Arms(reply), *_untried(reply), *_service(reply))


def _head(reply: OverviewReply, *, now: float) -> Iterator[Text]:
    totals = reply["totals"]
    hours = round((reply["until"] - reply["since"]) / 3600)
    at = moment(now)
    yield _text(f"{reply['policy']}  last {hours} h  {at}", style="bold")
    yield _text(
        f"decided {totals['decided']}  learned {totals['learned']}  reward {decimal(totals['reward'])}  "
        f"quality {decimal(totals['quality'])}  cost {decimal(totals['cost'])}  dollars {totals['dollars']:.4g}  "
        f"failed {percent(totals['failure_share'])}  explored {totals['explored']}"
    )


class _Arms:
    """The table of arms, with the columns that fit: a number that is cut off says nothing."""

    def __init__(self, reply: OverviewReply) -> None:
        self.rows = [tuple(_row(arm)) for arm in reply["arms"][:_MOST]]

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.rows:
            yield _text("nothing in this time")
            return
        widths = {
            title: max(cell_len(title), *(cell_len(row[number]) for row in self.rows))
            for number, title in enumerate(_COLUMNS)
        }
        widths["arm"] = min(widths["arm"], _NARROW)  # longer names are folded
        left_out: set[str] = set()
        for title in _FIRST_TO_GO:
            if sum(width + 2 for name, width in widths.items() if name not in left_out) - 2 <= options.max_width:
                break
            left_out.add(title)
        table = Table(box=None, pad_edge=False)
        for title in _COLUMNS:
            if title == "arm":
                table.add_column(title, overflow="fold", min_width=widths[title])
            elif title not in left_out:
                table.add_column(title, justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(*(_text(cell) for title, cell in zip(_COLUMNS, row, strict=True) if title not in left_out))
        yield table


def _row(arm: ArmOverviewReply) -> Iterator[str]:
    totals: TotalsReply = arm["totals"]
    yield arm["arm"][:_LONGEST]
    yield percent(arm["share"])
    for value in (totals["reward"], totals["quality"], totals["cost"]):
        yield decimal(value)
    yield f"{totals['dollars']:.4g}"
    yield percent(totals["failure_share"])
    yield decimal(totals["p50_s"])
    yield decimal(totals["p95_s"])
    saved = arm["saved"]
    if saved["missing"] is not None:
        yield "not tried enough"
    else:
        yield f"{saved['difference']:+.3f} [{saved['low']:+.3f}, {saved['high']:+.3f}]"


def _untried(reply: OverviewReply) -> Iterator[Text]:
    """Why an arm has no interval; of the arms of the table."""
    for arm in reply["arms"][:_MOST]:
        if arm["saved"]["missing"] is not None:
            yield _text(f"always {arm['arm'][:_LONGEST]}: {arm['saved']['missing']}")


def _service(reply: OverviewReply) -> Iterator[Text]:
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

"""Verb `top`: what the policy earns and how the service is, live in the terminal."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ragbandit.client.replies.status import ArmOverviewReply, OverviewReply
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

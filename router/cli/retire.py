"""Verb `retire`: a ledger that nobody uses any more lets no decision wait for it."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ragbandit.router.cli.console import ConfigOption, JsonOption, errors, failing_well, show
from ragbandit.router.errors import Conflict, NotReady
from ragbandit.router.process_identity import lease_holder

if TYPE_CHECKING:
    from ragbandit.router.storage.ledgers.ledger import Ledger

__all__ = ["add_retire"]

#: how long to wait for the ledger's learner, and between two looks at it, seconds
PATIENCE_S = 30.0
LOOK_S = 0.05
LEASE_S = 10.0


def add_retire(app: typer.Typer) -> None:
    """Put the verb on the command."""
    app.command(name="retire")(_retire)


def _retire(
    label: Annotated[str, typer.Argument(help="the ledger, by its label")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let no decision wait for a ledger any more, and remove those that do; what it has learned stays readable.

    Stop the routers and the learner of this label first. A router that is started with the label again brings it
    back: it inherits every decision that it has not learned or closed. Run the verb again after it was interrupted.
    """
    from ragbandit.router.cli.progress import bars
    from ragbandit.router.config import loading as configuration
    from ragbandit.router.learning.status import check_registered
    from ragbandit.router.serving.setup.bootstrap import ledger_of
    from ragbandit.router.types import PolicyLabel

    with failing_well():
        settings = configuration.load(config).settings
        if label == settings.policy.label:
            raise Conflict(
                f"the ledger {label!r} is the one that this configuration serves, so it cannot be retired",
                field="policy.label",
                remedy="set policy.label to another one and restart the services first",
            )
        with ledger_of(settings, label=PolicyLabel(label)) as ledger, bars(errors) as progress:
            check_registered(ledger)
            batches = _retired(ledger, report=lambda done: progress("batches", done, done))
        show({"retired": label, "batches": batches}, as_json=as_json)


def _retired(ledger: "Ledger", *, report: Callable[[int], None]) -> int:
    """The number of batches that it took. Raises NotReady while a learner holds the ledger."""
    from ragbandit.router.storage.ledgers.inheritance import Pace, retire

    holder = lease_holder("retire")
    batches, give_up, pace = 0, time.monotonic() + PATIENCE_S, Pace()
    try:
        while True:
            if not ledger.acquire(holder=holder, lease_s=LEASE_S):
                if time.monotonic() >= give_up:
                    raise NotReady(
                        f"a learner works on the ledger {ledger.label!r}, so it cannot be retired now",
                        remedy="stop that learner, or its `ragbandit up`, then try again",
                    )
                time.sleep(LOOK_S)
                continue
            step = retire(ledger, holder=holder, now=time.time(), pace=pace)
            if step == "done":
                return batches
            batches += step == "batch"
            report(batches)
            pace.rest(step)
    finally:
        ledger.release(holder=holder)

"""The configured store, opened for a verb."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.status import check_registered
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy
from ragbandit.router.serving.setup.bootstrap import ledger_of, open_database
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.types import IMPORTED, PolicyLabel


@contextmanager
def opened(
    config: str | None, *, label: str | None = None, registered: bool = True, make: bool = False
) -> Iterator[tuple[Settings, Ledger]]:
    """The settings and a ledger of their store, which is closed at the end.

    label: None: the configured one. registered: raise NotFound for a ledger that no router has opened: it is that of
    another folder or label. make: make the store if it is not there; else StoreError.
    """
    settings = configuration.load(config).settings
    label = label or settings.policy.label
    if make:
        database = open_database(settings)
        try:
            yield settings, Ledger(database, label=PolicyLabel(label))
        finally:
            database.close()
        return
    with ledger_of(settings, label=label) as ledger:
        if registered:
            check_registered(ledger)
        yield settings, ledger


def registered_policy(ledger: Ledger) -> Policy | None:
    """The policy of a ledger as it was last opened; None for one that was never opened, or imported."""
    row = ledger.registered()
    if row is None or row["algorithm"] == IMPORTED:
        return None
    return make_policy(row["algorithm"], params=json.loads(row["params"]))

"""The configured store, opened for a verb."""

from collections.abc import Iterator
from contextlib import contextmanager

from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.status import check_registered
from ragbandit.router.serving.setup.bootstrap import ledger_of, open_database
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.types import PolicyLabel


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

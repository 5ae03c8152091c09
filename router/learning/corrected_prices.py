"""The adjustment of outcomes by the corrections of prices that `data reprice` stores (`repricing.py`)."""

from dataclasses import replace

from ragbandit.router.learning.adjustments import AdjustedRow, Adjustment, Basis
from ragbandit.router.storage.access.corrections import Corrections, corrections_of
from ragbandit.router.storage.ledgers.ledger import Ledger


class Repricing(Adjustment):
    """Corrects the dollars of outcomes before they are learned; the stored outcomes do not change."""

    def __init__(self, ledger: Ledger) -> None:
        self._database = ledger.database
        self._corrections = Corrections()

    def refresh(self) -> None:
        with self._database.read() as connection:
            self._corrections = corrections_of(connection)

    def adjust(self, row: AdjustedRow, *, basis: Basis) -> AdjustedRow:  # noqa: ARG002 - of the protocol
        joined = self._corrections.applied(row.joined)
        return row if joined is row.joined else replace(row, joined=joined)

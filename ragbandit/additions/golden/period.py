"""The state of a period of golden questions, in the store."""

import math
from dataclasses import dataclass
from typing import Self

from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.positions import move_position, position_of


@dataclass(kw_only=True)
class PeriodState:
    """State of a period. dollars: spent on its answers. next_at: time of the next try; infinite if all is done."""

    ledger: Ledger
    period: int
    now: float
    dollars: float = 0.0
    next_at: float = 0.0

    @property
    def is_due(self) -> bool:
        return self.now >= self.next_at

    @classmethod
    def read(cls, ledger: Ledger, *, period_s: float, now: float) -> Self:
        with ledger.database.read() as connection:
            stored = position_of(connection, _position_name(ledger))
        period = int(now // period_s)
        if stored.get("period") != period:
            return cls(ledger=ledger, period=period, now=now)
        next_at = math.inf if stored["next_at"] is None else stored["next_at"]
        return cls(ledger=ledger, period=period, now=now, dollars=stored["dollars"], next_at=next_at)

    def store(self, *, dollars: float, next_at: float | None = None) -> None:
        """Store the dollars, and the time of the next try if it changes."""
        self.dollars, self.next_at = dollars, self.next_at if next_at is None else next_at
        later = None if math.isinf(self.next_at) else self.next_at
        position = {"period": self.period, "dollars": dollars, "next_at": later}
        with self.ledger.database.write() as connection:
            move_position(connection, _position_name(self.ledger), position=position, now=self.now)


def _position_name(ledger: Ledger) -> str:
    return f"golden:{ledger.label}"

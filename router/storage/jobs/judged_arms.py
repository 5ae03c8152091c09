"""Counts by arm and UTC day: answers that the judge scored, and answers withheld because a text instructs the judge.

They are rows of `counters`: the label is a hash, since the name of an arm may be longer than a label, and the name
is the day with the kind of count.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import delete, func, select

from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import DAY_S, Day, Increments, day_of
from ragbandit.router.storage.sql.tables import counters
from ragbandit.shared.types import ArmName

_PREFIX: Final = "judge:"
#: number of days whose counts are summed
DAYS: Final = 7


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedArm:
    scored: int = 0
    #: answers withheld from the judge
    suspicious: int = 0

    @property
    def answers(self) -> int:
        return self.scored + self.suspicious

    @property
    def share(self) -> float:
        """Share of the answers that were withheld."""
        return self.suspicious / self.answers if self.answers else 0.0


def count_judged(tally: Increments, arm: ArmName, *, result: Literal["scored", "suspicious"], now: float) -> None:
    tally.add(Day(f"{day_of(now)} {result}"), label=_label(arm))


def judged_arms(connection: Connection, *, arms: Iterable[ArmName], now: float) -> dict[ArmName, JudgedArm]:
    """The counts of the last DAYS days, for arms that have any."""
    by_label = {_label(arm): arm for arm in arms}
    total = func.sum(counters.c.value).label("total")
    query = select(counters.c.label, counters.c.name, total).group_by(counters.c.label, counters.c.name)
    is_recent = counters.c.label.in_(by_label), counters.c.name > day_of(now - DAYS * DAY_S) + "~"
    sums: dict[ArmName, dict[str, int]] = {}
    for row in connection.execute(query.where(*is_recent)):
        of_arm, what = sums.setdefault(by_label[row.label], {}), row.name.partition(" ")[2]
        of_arm[what] = of_arm.get(what, 0) + int(row.total)
    return {arm: JudgedArm(**counts) for arm, counts in sorted(sums.items())}


def forget_judged(connection: Connection, *, now: float) -> None:
    """Delete the counts of days that are no longer summed."""
    are_ours = counters.c.label >= _PREFIX, counters.c.label < _PREFIX[:-1] + ";"
    connection.execute(delete(counters).where(*are_ours, counters.c.name < day_of(now - DAYS * DAY_S)))


def _label(arm: ArmName) -> str:
    return _PREFIX + hashlib.blake2b(arm.encode(), digest_size=16).hexdigest()

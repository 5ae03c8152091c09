"""A log in memory: its rows, for policies that read questions, and the same rows as arrays."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from ragbandit.router.offline.estimation.bandit_log import Log, wrong_pmfs
from ragbandit.router.offline.logs.batches import FIELDS, BatchSpec, UnevenFeatures, check_choice, decoded
from ragbandit.router.offline.logs.records import Logged
from ragbandit.router.offline.logs.sources import rows_batch
from ragbandit.router.offline.replay.results import Skipped
from ragbandit.router.offline.replay.service import ServiceRecord
from ragbandit.router.offline.types import Matrix, Strings
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import KILLED, STICKY, ArmName

__all__ = ["MemoryLog", "check_pmf", "memory_log", "pmf_columns", "row_name", "segment_of", "strings_of"]

#: key of a decision's facts that says that nobody drew its arm -> why
_UNDRAWN: Final = {
    STICKY: "it stayed on the arm of an earlier turn of its session: nobody drew it",
    KILLED: "its arm was pinned by the kill switch: nobody drew it",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLog:
    """Rows in memory."""

    rows: Sequence[Logged]
    log: Log
    #: the ledger that learned the rows; None: that of each decision's own label
    ledger: str | None = None
    #: where the rows come from, for the report
    described: str = "a log in memory"
    #: rows decided before were left out, seconds since the epoch; None: all rows are here
    since: float | None = None
    #: rows that were left out because they cannot be used
    skipped: Sequence[Skipped] = ()
    #: what the store records of the service that wrote the log
    service: ServiceRecord = field(default_factory=ServiceRecord)


def memory_log(
    rows: Iterable[Logged],
    *,
    mixed_arms: bool = False,
    ledger: str | None = None,
    described: str = "a log in memory",
    since: float | None = None,
    skipped: Sequence[Skipped] = (),
    service: ServiceRecord | None = None,
) -> MemoryLog:
    """Rows in memory, checked as arrays too.

    mixed_arms: rows may offer different arms; their columns are then all arms that occur. ledger: the one that learned
    the rows. described, since, skipped: for the report, as in MemoryLog. service: what its store records.
    Turns that stayed on the arm of an earlier one, and decisions whose arm was pinned by the kill switch, are left out,
    and told as skipped: nobody drew their arm.
    Raises InvalidInput for an empty log, one arm, mixed arms, or a row that cannot be true.
    """
    found = list(rows)
    undrawn = {id(row): why for row in found for key, why in _UNDRAWN.items() if key in row.decision.facts}
    kept = [row for row in found if id(row) not in undrawn]
    told = (Skipped(where=row_name(row), reason=undrawn[id(row)]) for row in found if id(row) in undrawn)
    skipped = (*skipped, *told)
    if not kept:
        raise InvalidInput(
            "has no rows", field="log", remedy="feedback must have been learned before it can be replayed"
        )
    spec = BatchSpec(arms=_arms(kept, mixed=mixed_arms), mixed_arms=mixed_arms, fields=("version",), features=True)
    return MemoryLog(
        rows=kept,
        log=_arrays(kept, spec=spec),
        ledger=ledger,
        described=described,
        since=since,
        skipped=tuple(skipped),
        service=service or ServiceRecord(),
    )


def row_name(row: Logged) -> str:
    """A row in words, for messages."""
    return f"line {row.line}" if row.line else f"decision {row.decision.id}"


def _arms(rows: Sequence[Logged], *, mixed: bool) -> tuple[ArmName, ...]:
    offers = [row.decision.arms for row in rows] if mixed else [rows[0].decision.arms]
    arms = tuple(dict.fromkeys(arm for offer in dict.fromkeys(offers) for arm in offer))
    check_choice(arms)
    return arms


def _arrays(rows: Sequence[Logged], *, spec: BatchSpec) -> Log:
    batch = rows_batch(rows)
    try:
        return decoded(batch, spec=spec, named=lambda row: row_name(rows[row]))
    except UnevenFeatures:
        return decoded(batch, spec=replace(spec, features=False), named=lambda row: row_name(rows[row]))


def strings_of(rows: Sequence[Logged], name: str) -> Strings:
    """A field of every row as text, shape (n,); "" where a row does not have it.

    name: tenant, version, policy, or a key of the context; JSON where its value is no text.
    """
    found = np.empty(len(rows), dtype=np.object_)
    for index, row in enumerate(rows):
        decision = row.decision
        own = {"tenant": decision.query.tenant, "version": decision.version, "policy": decision.policy}
        value = own[name] if name in FIELDS else decision.query.context.get(name)
        found[index] = value if isinstance(value, str) else "" if value is None else canonical(value)
    return found


def segment_of(rows: Sequence[Logged], name: str) -> Strings:
    """`strings_of` for a field that was asked for. Raises InvalidInput if no row has it."""
    found = strings_of(rows, name)
    if not any(found):
        known = sorted({key for row in rows for key in row.decision.query.context})
        remedy = f"use one of {', '.join(['tenant', 'version', 'policy', *known])}"
        raise InvalidInput("no row has it", field=f"segment {name}", remedy=remedy)
    return found


def pmf_columns(rows: Sequence[Logged], *, name: str, log: Log) -> Matrix:
    """A candidate's pmf that stands in the rows: a list aligned with the row's arms, or {arm: probability}.

    Raises InvalidInput naming the row where it is missing, no pmf, or speaks of an arm that was not offered.
    """
    columns = {arm: index for index, arm in enumerate(log.arms)}
    pmf = np.zeros(log.pmf.shape)
    for index, row in enumerate(rows):
        value = row.extra.get(name)
        arms: Sequence[str] = row.decision.arms
        if isinstance(value, Mapping):
            arms, value = tuple(value), list(value.values())
        numbers = _numbers(value)
        if numbers is None or len(numbers) != len(arms) or not set(arms) <= set(row.decision.arms):
            raise InvalidInput(
                "is missing"
                if value is None
                else f"{value!r:.80} does not fit the arms {', '.join(row.decision.arms)}",
                field=f"{row_name(row)} {name}",
                remedy="give a list aligned with arms, or an object from arm to probability",
            )
        pmf[index, [columns[ArmName(arm)] for arm in arms]] = numbers
    check_pmf(pmf, log=log, name=name, named=lambda row: row_name(rows[row]))
    return pmf


def _numbers(value: object) -> list[float] | None:
    """The value, if it is a list of numbers."""
    if not isinstance(value, list | tuple):
        return None
    if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in value):
        return None
    return [float(each) for each in value]


def check_pmf(pmf: Matrix, *, log: Log, name: str, named: Callable[[int], str]) -> None:
    """Raises InvalidInput at the first row that is no pmf over the arms that it offers. named: row -> words."""
    wrong = wrong_pmfs(pmf, offered=log.offered)
    if len(wrong):
        row = int(wrong[0])
        message = f"{pmf[row].tolist()} is no distribution over the arms offered"
        raise InvalidInput(message, field=f"{named(row)} {name}", remedy="give probabilities that sum to 1")

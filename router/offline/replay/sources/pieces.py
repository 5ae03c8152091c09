"""Logs as a replay reads them: rows and arrays in memory, or pieces of a file that need not fit."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from ragbandit.router.errors import InvalidInput
from ragbandit.router.offline.estimation.bandit_log import Log, keys_of, possible, questions_of, wrong_pmfs
from ragbandit.router.offline.logs.records import Logged
from ragbandit.router.offline.replay.results import Skipped
from ragbandit.router.offline.replay.sources.service import ServiceRecord
from ragbandit.router.offline.types import Flags, Matrix, Strings
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.types import KILLED, STICKY, ArmName

__all__ = [
    "PIECE",
    "UNMIXED",
    "MemoryLog",
    "Piece",
    "Pieces",
    "check_choice",
    "check_pmf",
    "memory_log",
    "pmf_columns",
    "segment_of",
    "strings_of",
]

#: rows of a piece: its arrays fit into a processor's cache
PIECE = 32_768
#: of a turn that no candidate could have moved
STAYED = "it stayed on the arm of an earlier turn of its session: nobody drew it"
#: the same of a decision under the kill switch
PINNED = "its arm was pinned by the kill switch: nobody drew it"
#: remedy for rows that offer different arms
UNMIXED = "give --mixed-arms to judge every row among its own arms, or --since a time after the change"
#: key of a decision's facts that says that nobody drew its arm -> why
_UNDRAWN: Final = {STICKY: STAYED, KILLED: PINNED}


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Some rows of the log, with the probabilities that each candidate gives to the arms."""

    log: Log
    #: per candidate, shape (n, K)
    candidates: Sequence[Matrix]


class Pieces(Protocol):
    """The log in its order, as often as it is asked for."""

    def __iter__(self) -> Iterator[Piece]:
        """From the first row on."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLog:
    """A log in memory: the rows, for policies that read questions, and the same rows as arrays."""

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

    def pieces(self, candidates: Sequence[Matrix]) -> "_MemoryPieces":
        """The log with these candidates."""
        return _MemoryPieces(log=self.log, candidates=candidates)


@dataclass(frozen=True, kw_only=True, slots=True)
class _MemoryPieces:
    log: Log
    candidates: Sequence[Matrix] = field(default_factory=tuple)

    def __iter__(self) -> Iterator[Piece]:
        for start in range(0, len(self.log), PIECE):
            rows = np.arange(start, min(start + PIECE, len(self.log)))
            yield Piece(log=self.log.part(rows), candidates=[pmf[rows] for pmf in self.candidates])


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
    told = (Skipped(where=place(row), reason=undrawn[id(row)]) for row in found if id(row) in undrawn)
    skipped = (*skipped, *told)
    if not kept:
        raise InvalidInput(
            "has no rows", field="log", remedy="feedback must have been learned before it can be replayed"
        )
    arms = _arms(kept, mixed=mixed_arms)
    log = _log(kept, arms=arms)
    wrong = log.faults()
    if wrong:
        row = min(wrong)
        name, message, remedy = wrong[row]
        raise InvalidInput(message, field=f"{place(kept[row])} {name}", remedy=remedy)
    return MemoryLog(
        rows=kept,
        log=log,
        ledger=ledger,
        described=described,
        since=since,
        skipped=tuple(skipped),
        service=service or ServiceRecord(),
    )


def stayed_note(count: int) -> list[str]:
    """A word on turns that are no draws."""
    return (
        [f"{count:,} decisions are left out: each stayed on the arm of an earlier turn of its session, or was pinned"]
        if count
        else []
    )


def place(row: Logged) -> str:
    """Position of a row, for messages."""
    return f"line {row.line}" if row.line else f"decision {row.decision.id}"


def _arms(rows: Sequence[Logged], *, mixed: bool) -> tuple[ArmName, ...]:
    first = rows[0].decision.arms
    found = dict.fromkeys(first)
    for row in rows:
        if row.decision.arms == first:
            continue
        if not mixed and set(row.decision.arms) != set(first):
            raise InvalidInput(
                f"offers {', '.join(row.decision.arms)}; the first row offers {', '.join(first)}",
                field=f"{place(row)} arms",
                remedy=UNMIXED,
            )
        found |= dict.fromkeys(row.decision.arms)
    check_choice(tuple(found))
    return tuple(found)


def check_choice(arms: Sequence[ArmName]) -> None:
    """Raises InvalidInput for a log of one arm."""
    if len(arms) < 2:
        raise InvalidInput(
            f"has one arm only ({', '.join(arms)})",
            field="log",
            remedy="replay needs a choice: log traffic with two arms or more",
        )


def _log(rows: Sequence[Logged], *, arms: tuple[ArmName, ...]) -> Log:
    columns = {arm: index for index, arm in enumerate(arms)}
    decisions, rewards = [row.decision for row in rows], [row.reward for row in rows]
    pmf = np.zeros((len(rows), len(arms)))
    offered: Flags = np.zeros(pmf.shape, dtype=np.bool_)
    for index, decision in enumerate(decisions):
        here = [columns[arm] for arm in decision.arms]
        pmf[index, here], offered[index, here] = decision.pmf, True
    action = np.array([columns.get(decision.arm, -1) for decision in decisions], dtype=np.intp)
    keys = keys_of([decision.id for decision in decisions])
    questions, known_by = questions_of(
        [decision.query.text for decision in decisions], features=[one.features for one in decisions], ids=keys
    )
    return Log(
        arms=arms,
        keys=keys,
        questions=questions,
        known_by=known_by,
        action=action,
        pmf=possible(pmf, action=action),
        offered=offered,
        reward=np.array([reward.value for reward in rewards], dtype=np.float64),
        quality=np.array([reward.quality for reward in rewards], dtype=np.float64),
        cost=np.array([reward.cost for reward in rewards], dtype=np.float64),
        minimum=min(reward.minimum for reward in rewards),
        maximum=max(reward.maximum for reward in rewards),
        raw=np.array([reward.preset in ("reward", "default") for reward in rewards], dtype=np.bool_),
        defaulted=np.array([reward.source == "default" for reward in rewards], dtype=np.bool_),
        late=np.array([row.late for row in rows], dtype=np.bool_),
        made_at=np.array([decision.made_at for decision in decisions], dtype=np.float64),
        features=_features(rows),
        fields={"version": strings_of(rows, "version")},
    )


def _features(rows: Sequence[Logged]) -> "np.ndarray[tuple[int, int], np.dtype[np.float32]] | None":
    """Stored features, where every row has them in one width."""
    found = [row.decision.features for row in rows]
    widths = {None if features is None else features.size for features in found}
    if widths == {None} or len(widths) > 1:
        return None
    return np.stack([features for features in found if features is not None])


def strings_of(rows: Sequence[Logged], name: str) -> Strings:
    """A field of every row as text, shape (n,); "" where a row does not have it.

    name: tenant, version, policy, or a key of the context; JSON where its value is no text.
    """
    found = np.empty(len(rows), dtype=np.object_)
    for index, row in enumerate(rows):
        decision = row.decision
        fixed = {"tenant": decision.query.tenant, "version": decision.version, "policy": decision.policy}
        value = fixed.get(name) if name in fixed else decision.query.context.get(name)
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
                field=f"{place(row)} {name}",
                remedy="give a list aligned with arms, or an object from arm to probability",
            )
        pmf[index, [columns[ArmName(arm)] for arm in arms]] = numbers
    check_pmf(pmf, log=log, name=name, rows=rows)
    return pmf


def _numbers(value: object) -> list[float] | None:
    """The value, if it is a list of numbers."""
    if not isinstance(value, list | tuple):
        return None
    if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in value):
        return None
    return [float(each) for each in value]


def check_pmf(pmf: Matrix, *, log: Log, name: str, rows: Sequence[Logged] | None = None, first: int = 0) -> None:
    """Raises InvalidInput at the first row that is no pmf over the arms that it offers."""
    bad = wrong_pmfs(pmf, offered=log.offered)
    if len(bad):
        index = int(bad[0])
        raise InvalidInput(
            f"{pmf[index].tolist()} is no distribution over the arms offered",
            field=f"{place(rows[index]) if rows else f'row {first + index + 1}'} {name}",
            remedy="give probabilities that sum to 1",
        )

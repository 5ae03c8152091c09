"""Sticky sessions: turns of a conversation that stay on the arm of one draw.

A turn that stays is no draw of the policy. It is stored as what it is: one arm was offered, with probability 1 given
what was known when it was decided, namely the draw that it follows; its facts say which. So the draw can be made again
from the row, the logged propensity is exact, and estimates of other policies, which could not have moved it, leave it
out. docs/decisions/sticky-turns.md has the reasons.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ragbandit.router.config.settings import Settings
from ragbandit.router.storage.decisions.sessions import SessionTurn, newest_turns
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.types import ArmName, DecisionId, Json, Query


@dataclass(frozen=True, kw_only=True, slots=True)
class Stay:
    """A turn that is to stay on an arm."""

    arm: ArmName
    #: the decision that drew the arm
    first: DecisionId
    #: place of this turn since the draw, the drawn one being 1
    turn: int
    #: turns that stay, the drawn one among them
    turns: int

    @property
    def facts(self) -> dict[str, Json]:
        """As the decision keeps it under STICKY."""
        return {"first": self.first, "turn": self.turn, "turns": self.turns}


def sticky_turns_of(query: Query, *, settings: Settings) -> int:
    """Turns for which this question's session stays on the arm of a draw; 0: this one is drawn in any case.

    What an incumbent promises holds for turns that are drawn: with one, every turn is. So is a turn whose arm the
    caller chose.
    """
    if query.session is None or query.forced or settings.policy.incumbent is not None:
        return 0
    turns = settings.conversation.sticky_turns if query.sticky_turns is None else query.sticky_turns
    return turns if turns > 1 else 0


def stays_of(queries: Sequence[Query], *, settings: Settings, database: Database) -> list[Stay | None]:
    """For every question whether, and where, it stays: one read, or none where no question may. Raises StoreError."""
    turns = [sticky_turns_of(query, settings=settings) for query in queries]
    sessions = {(query.session, query.tenant) for query, most in zip(queries, turns, strict=True) if most}
    if not sessions:
        return [None] * len(queries)
    newest = newest_turns(database, {(session, tenant) for session, tenant in sessions if session is not None})
    return [
        _stay(newest, query=query, turns=most) if most else None for query, most in zip(queries, turns, strict=True)
    ]


def _stay(newest: Mapping[tuple[str, str], SessionTurn], *, query: Query, turns: int) -> Stay | None:
    last = newest.get((query.session or "", query.tenant))
    if last is None or last.turn >= turns:
        return None
    # A turn for which fewer arms were allowed is its caller's choice, maybe of another key: no turn follows it that
    # leaves more to the policy.
    if last.allowed is not None and (query.arms is None or not last.allowed.issuperset(query.arms)):
        return None
    return Stay(arm=last.arm, first=last.first, turn=last.turn + 1, turns=turns)

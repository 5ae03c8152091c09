"""Joining: the decision that a judgement of another system is about."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection

from ragbandit.router.importers.source import DECISION, Judgement
from ragbandit.router.storage.decisions.links import Linked, decisions_named, linked_decisions

#: why a judgement has no decision
Missing = Literal["unmatched", "ambiguous", "archived"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """A judgement and the decision that it is about."""

    judgement: Judgement
    #: None: see `missing`
    decision_id: str | None
    missing: Missing | None = None


def joined(connection: Connection, judgements: Sequence[Judgement], *, tenant: str | None) -> list[Joined]:
    """The judgements with their decisions, in order, by one look-up for each kind of link.

    The closest link that stands for a decision counts. Of several decisions the newest is meant, which is what a
    message or a span showed in the end; but a whole trace, or an id that decisions of two tenants share, is ambiguous:
    a guess would teach the policy about the wrong arm. tenant: whose decisions may be judged; None: all.
    """
    wanted: dict[str, dict[str, None]] = defaultdict(dict)
    for judgement in judgements:
        for kind, value in judgement.links:
            wanted[kind][value] = None
    decisions: dict[str, Mapping[str, Sequence[Linked]]] = {}
    for kind, values in wanted.items():
        if kind == DECISION:
            named = decisions_named(connection, list(values))
            decisions[kind] = {value: [one] for value, one in named.items() if tenant in (None, one.tenant)}
        else:
            decisions[kind] = linked_decisions(connection, kind, list(values), tenant=tenant)
    return [_joined(judgement, decisions) for judgement in judgements]


def _joined(judgement: Judgement, decisions: Mapping[str, Mapping[str, Sequence[Linked]]]) -> Joined:
    for kind, value in judgement.links:
        some = decisions[kind].get(value)
        if not some:
            continue
        several = len(some) > 1 and some[1].tenant is not None
        if several and (kind == "trace" or some[0].tenant != some[1].tenant):
            return Joined(judgement=judgement, decision_id=None, missing="ambiguous")
        if some[0].tenant is None:
            return Joined(judgement=judgement, decision_id=None, missing="archived")
        return Joined(judgement=judgement, decision_id=some[0].decision_id)
    return Joined(judgement=judgement, decision_id=None, missing="unmatched")

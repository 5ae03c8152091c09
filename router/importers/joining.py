"""Joining: the decision that a judgement of another system is about."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from ragbandit.router.importers.source import DECISION, Judgement
from ragbandit.router.storage.decisions.links import Linked, decisions_named, linked_decisions

#: a judgement, the decision that it is about, and where there is none the outcome that says why
Joined = tuple[Judgement, str | None, str]


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
    return [(judgement, *_decision_of(judgement, decisions)) for judgement in judgements]


def _decision_of(
    judgement: Judgement, decisions: Mapping[str, Mapping[str, Sequence[Linked]]]
) -> tuple[str | None, str]:
    for kind, value in judgement.links:
        linked = decisions[kind].get(value)
        if not linked:
            continue
        several = len(linked) > 1 and linked[1].tenant is not None
        if several and (kind == "trace" or linked[0].tenant != linked[1].tenant):
            return None, "ambiguous"
        return (None, "archived") if linked[0].tenant is None else (linked[0].decision_id, "")
    return None, "unmatched"

"""Lean updates: of a ledger's rows just what a policy learns from that needs no texts, pmfs and ids."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, case, select

from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import REWARD, features_value
from ragbandit.router.storage.sql.tables import decisions, updates
from ragbandit.shared.types import IMPORTED, PolicyLabel, Query, Update

#: columns of `updates` that are no part of the reward
_PLAIN: Final = ("seq", "decision_id", "arm", "propensity", "made_at", "decided", "restarts")
#: the columns of `updates` that a policy learns from, which needs the features and no text
_COLUMNS: Final = (*_PLAIN, *REWARD.names)
#: whether the facts have that key: a text in them has its quotes escaped
_IMPORTED = decisions.c.facts.contains(f'"{IMPORTED}":', autoescape=True)
_NO_QUESTION = Query(text="")
#: columns of a row that every policy is given: _COLUMNS, the features, whether it was imported, its own weight of cost
_LEARNED = len(_COLUMNS) + 3
#: the columns of `decisions` that a policy with a schema of the context reads, in the order in which it needs them
_QUESTION = ("context", "tenant", "text")


def lean_updates(
    ledger: Ledger,
    *,
    after: int,
    upto: int | None = None,
    page: int = 4000,
    context: bool = False,
    text: bool = False,
) -> Iterator[Update]:
    """`Ledger.read` for a policy that learns from arm, features and reward alone: an eighth of the work.

    The question has its weight of cost and the text "", the arms are the drawn one, and there are no feedback ids.
    context: the question has its context and its tenant; text: and its text.
    """
    question = _QUESTION[: 3 if text else 2] if context or text else ()
    while upto is None or after < upto:
        for row in (rows := _page(ledger, after=after, upto=upto, page=page, question=question)):
            yield _update(row, label=ledger.label)
            after = row.seq
        if not rows:
            return


def _page(ledger: Ledger, *, after: int, upto: int | None, page: int, question: Sequence[str]) -> Sequence[Any]:
    features: ColumnElement[Any] = decisions.c.features
    if encoder_hash := ledger.encoder_hash():  # as in `Ledger.read_with_decisions`
        features = case((decisions.c.encoder_hash == encoder_hash, features))
    columns = [updates.c[name] for name in _COLUMNS]
    joined = updates.join(decisions, decisions.c.id == updates.c.decision_id)
    query = select(
        *columns, features, _IMPORTED, decisions.c.cost_weight, *(decisions.c[name] for name in question)
    ).select_from(joined)
    query = query.where(updates.c.policy == ledger.label, updates.c.seq > after)
    if upto is not None:
        query = query.where(updates.c.seq <= upto)
    with ledger.database.read() as connection:
        return connection.execute(query.order_by(updates.c.seq).limit(page)).all()


def _update(row: Any, *, label: PolicyLabel) -> Update:
    """The update of _COLUMNS, features, imported or not, and some of _QUESTION."""
    seq, decision_id, arm, propensity, made_at, decided, restarts = row[: len(_PLAIN)]
    features, imported, weight = row[len(_COLUMNS) : _LEARNED]
    return Update(
        policy=label,
        seq=seq,
        decision_id=decision_id,
        query=_query(weight, *row[_LEARNED:]),
        arm=arm,
        arms=(arm,),
        pmf=(propensity,),
        scores=None,
        propensity=propensity,
        reward=REWARD.read(row[len(_PLAIN) : len(_COLUMNS)]),
        feedback_ids=(),
        features=features_value(features),
        made_at=made_at,
        imported=bool(imported),
        decided=decided,
        restarts=() if restarts is None else tuple(json.loads(restarts)),
    )


def _query(weight: float | None, context: str | None = None, tenant: str = "default", text: str = "") -> Query:
    if context is None:
        return _NO_QUESTION if weight is None else Query(text="", cost_weight=weight)
    return Query(text=text, context=json.loads(context), tenant=tenant, cost_weight=weight)

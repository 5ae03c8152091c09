"""Values to rows and back, in one place. JSON keeps float64 exactly (shortest repr), features see feature_bytes."""

import hashlib
import json
from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import RowMapping

from ragbandit.router.storage.rows.draw_bytes import DrawBytes, draw_bytes, draw_value
from ragbandit.router.storage.rows.feature_bytes import features_bytes, features_value
from ragbandit.router.types import (
    IMPORTED,
    ArmName,
    Budget,
    Decision,
    DecisionId,
    Feedback,
    FeedbackId,
    Message,
    PolicyLabel,
    Query,
    Reward,
    RunBy,
    SnapshotInfo,
    Update,
)

__all__ = [
    "Row",
    "body_hash",
    "canonical",
    "decision_row",
    "decision_value",
    "draw_of",
    "feedback_row",
    "feedback_value",
    "plain_decision",
    "query_hash",
    "request_hash",
    "reward_value",
    "short_body_hash",
    "short_hash",
    "snapshot_row",
    "snapshot_value",
    "unreadable_field",
    "update_row",
    "update_value",
    "without_messages",
]

Row = RowMapping | Mapping[str, Any]


# Made once: `json.dumps` would make one for every value.
_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def canonical(value: object) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return _CANONICAL.encode(value)


def body_hash(body: object) -> str:
    """sha256 of the canonical JSON: decides whether a repeated id is a duplicate or a conflict."""
    return _sha256(canonical(body))


def _sha256(text: str) -> str:
    return _digest(text).hex()


def _digest(text: str) -> bytes:
    # A lone surrogate can reach us from Python callers; it must hash, the edge refuses it with a better word.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def short_hash(known: str) -> str:
    """A sha256 as rows hold it, in 43 digits of base64; `known` may be that, or its 64 hex digits as rows of before."""
    return _base64(bytes.fromhex(known)) if len(known) == _HEX_DIGITS else known


def short_body_hash(body: object) -> str:
    """`body_hash` as rows hold it."""
    return _base64(_digest(canonical(body)))


_HEX_DIGITS: Final = 64


def _base64(digest: bytes) -> str:
    return b2a_base64(digest, newline=False).rstrip(b"=").decode()


def _budget_value(text: str) -> Budget:
    """The budget of its JSON; of a row of a newer version the caps that this one has."""
    return Budget(**{cap: value for cap, value in json.loads(text).items() if cap in _CAPS})


def query_hash(query: Query, *, run_by: RunBy) -> str:
    """`body_hash` of a request: two requests under one decision id are the same if these are equal.

    The body is {"arms", "budget" (the caps that were given), "context", "run_by", "tenant", "text"}; and, where there
    is one, "conversation": {"asked", "forced", "messages", "session", "sticky_turns"}. Then "text" is what was asked:
    the same words may be rewritten in another way when they come again.
    """
    caps = _budget(query.budget)[1]
    return _query_hash(query, run_by=run_by, context=_context(query), allowed=_names(query.arms), budget=caps).hex()


def _query_hash(query: Query, *, run_by: RunBy, context: str, allowed: str | None, budget: str) -> bytes:
    """The hash from parts that are JSON already; the keys stand in the order in which `canonical` sorts them."""
    conversation = _conversation(query)
    tenant, text = canonical(query.tenant), canonical(query.text if query.asked is None else query.asked)
    more = f',"conversation":{canonical(conversation)}' if conversation else ""
    return _digest(
        f'{{"arms":{allowed or "null"},"budget":{budget},"context":{context}{more}'
        f',"run_by":{canonical(run_by)},"tenant":{tenant},"text":{text}}}'
    )


def _conversation(query: Query) -> dict[str, Any]:
    """What a query has of a conversation; empty for a question that stands alone."""
    if not (query.session or query.messages or query.asked is not None or query.forced or query.sticky_turns):
        return {}
    found = {
        "asked": query.asked,
        "forced": query.forced or None,
        "messages": [[message.role, message.text] for message in query.messages] or None,
        "session": query.session,
        "sticky_turns": query.sticky_turns,
    }
    return {name: value for name, value in found.items() if value is not None}


def _request(query: Query) -> str | None:
    """The column `request` of a query: what is beside the question and has no column of its own."""
    found = {name: value for name, value in _conversation(query).items() if name != "session"}
    if query.request:
        found["edge"] = dict(query.request)
    return canonical(found) if found else None


def without_messages(request: str | None) -> str | None:
    """The column `request` without what was said: that the arm was forced stays."""
    try:
        known = {} if request is None else json.loads(request)
    except ValueError:  # a damaged row has the same right to be forgotten
        known = {}
    return canonical({"forced": True}) if known.get("forced") else None


def _query_value(row: Row) -> Query:
    """The query of a decision's row."""
    allowed = row["allowed"]
    known: dict[str, Any] = {} if row["request"] is None else json.loads(row["request"])
    return Query(
        id=DecisionId(row["id"]),
        text=row["text"],
        context=json.loads(row["context"]),
        arms=None if allowed is None else tuple(json.loads(allowed)),
        budget=_budget_value(row["budget"]),
        tenant=row["tenant"],
        forced=bool(known.get("forced")),
        session=row["session"],
        sticky_turns=known.get("sticky_turns"),
        messages=tuple(Message(role=role, text=text) for role, text in known.get("messages", ())),
        asked=known.get("asked"),
        api_key=row["api_key"],
        request=known.get("edge", {}),
    )


def _context(query: Query) -> str:
    return canonical(dict(query.context)) if query.context else "{}"


@lru_cache(maxsize=256)
def _arms(arms: tuple[ArmName, ...]) -> str:
    return canonical(list(arms))


def _names(arms: tuple[ArmName, ...] | None) -> str | None:
    return None if arms is None else _arms(tuple(arms))


_CAPS: Final = tuple(field.name for field in fields(Budget))
_ALL_CAPS: Final = canonical(dict.fromkeys(_CAPS))
_NO_CAPS: Final = "{}", "{}"


def _budget(budget: Budget) -> tuple[str, str]:
    """All caps, or none where none is given; and those that were given."""
    caps = {name: getattr(budget, name) for name in _CAPS}
    if all(cap is None for cap in caps.values()):
        return _NO_CAPS
    return canonical(caps), canonical({name: cap for name, cap in caps.items() if cap})


def decision_row(decision: Decision) -> dict[str, Any]:
    """A row of `decisions`."""
    query = decision.query
    context, allowed, (budget, caps) = _context(query), _names(query.arms), _budget(query.budget)
    asked = _query_hash(query, run_by=decision.run_by, context=context, allowed=allowed, budget=caps)
    draw = draw_bytes(asked, seed=decision.seed, pmf=decision.pmf, scores=decision.scores)
    columns = _IN_DRAW if draw is not None else _draw_columns(decision, body_hash=asked.hex())
    return columns | {
        "id": decision.id,
        "tenant": query.tenant,
        "text": query.text,
        "context": context,
        "budget": budget,
        "allowed": allowed,
        "arms": _arms(decision.arms),
        "arm": decision.arm,
        "propensity": decision.propensity,
        "policy": decision.policy,
        "version": decision.version,
        "encoder_hash": decision.encoder_hash,
        "floor": decision.floor,
        "explored": decision.explored,
        "fault": decision.fault,
        "facts": canonical(decision.facts if type(decision.facts) is dict else dict(decision.facts)),
        "run_by": decision.run_by,
        "features": features_bytes(decision.features),
        "made_at": decision.made_at,
        "draw": draw,
        "session": query.session,
        "api_key": query.api_key,
        "request": _request(query),
    }


#: columns of what is in the bytes of `draw`
_IN_DRAW: Final[dict[str, Any]] = {"body_hash": "", "seed": "", "pmf": "", "scores": None}


def _draw_columns(decision: Decision | DrawBytes, *, body_hash: str) -> dict[str, Any]:
    """The same in columns of their own, as in rows of before."""
    return {
        "body_hash": body_hash,
        "seed": str(decision.seed),
        "pmf": canonical(decision.pmf),
        "scores": None if decision.scores is None else canonical(decision.scores),
    }


def draw_of(row: Row) -> DrawBytes:
    """The draw of a row, whichever form it has. A column that is not empty holds, whatever the bytes say."""
    body_hash, seed, pmf, scores = (row[name] for name in _IN_DRAW)
    made = _NO_DRAW if row["draw"] is None else draw_value(row["draw"])
    if row["draw"] is not None and not (body_hash or seed or pmf or scores):
        return made
    return DrawBytes(
        body_hash=body_hash or made.body_hash,
        seed=int(seed) if seed or row["draw"] is None else made.seed,
        pmf=tuple(json.loads(pmf)) if pmf or row["draw"] is None else made.pmf,
        scores=made.scores if scores is None else tuple(json.loads(scores)),
    )


_NO_DRAW: Final = DrawBytes(body_hash="", seed=0, pmf=(), scores=None)


def request_hash(row: Row) -> str:
    """The sha256 of the request that made the decision of this row, hex digits; "" where the row does not tell it."""
    try:
        return row["body_hash"] or draw_value(row["draw"] or b"").body_hash
    except ValueError:  # a damaged row is another request, and is told apart by what reads the rest of it
        return ""


def plain_decision(row: Row) -> dict[str, Any]:
    """A row of `decisions` as before: everything in columns of their own. One whose draw is damaged stays as it is."""
    try:
        draw = None if row["draw"] is None else draw_of(row)
    except (ValueError, TypeError):
        draw = None
    if draw is None:
        return dict(row)
    budget = _ALL_CAPS if row["budget"] == _NO_CAPS[0] else row["budget"]
    return {**row, **_draw_columns(draw, body_hash=draw.body_hash), "budget": budget, "draw": None}


def decision_value(row: Row) -> Decision:
    """The decision of a row."""
    draw = draw_of(row)
    return Decision(
        id=DecisionId(row["id"]),
        query=_query_value(row),
        arm=ArmName(row["arm"]),
        arms=tuple(json.loads(row["arms"])),
        pmf=draw.pmf,
        propensity=row["propensity"],
        scores=draw.scores,
        policy=PolicyLabel(row["policy"]),
        version=row["version"],
        encoder_hash=row["encoder_hash"],
        seed=draw.seed,
        floor=row["floor"],
        explored=row["explored"],
        fault=row["fault"],
        facts=json.loads(row["facts"]),
        run_by=row["run_by"],
        features=features_value(row["features"]),
        made_at=row["made_at"],
    )


def unreadable_field(row: Row) -> str | None:
    """The field of a decision's row that `decision_value` cannot read, or None."""
    for name in ("context", "budget", "allowed", "arms", "pmf", "scores", "facts", "features"):
        try:
            if row[name] == _IN_DRAW.get(name) and row["draw"] is not None:
                draw_value(row["draw"])
            elif row[name] is not None:
                features_value(row[name]) if name == "features" else json.loads(row[name])
        except (ValueError, TypeError):
            return name
    return None


def feedback_row(feedback: Feedback) -> dict[str, Any]:
    """A row of `feedback`, not late yet."""
    value = list(feedback.value) if isinstance(feedback.value, tuple) else feedback.value
    body = {
        "decision_id": feedback.decision_id,
        "kind": feedback.kind,
        "value": value,
        "source": feedback.source,
    }
    facts = canonical(dict(feedback.facts)) if feedback.facts else None
    more = {"rater": feedback.rater, "event": feedback.event, "facts": facts}
    told = {name: said for name, said in more.items() if said is not None}
    # An event is its name: what it is worth may be set anew before it is sent again.
    same = body | told | ({"value": None} if feedback.kind == "event" else {})
    return body | {
        "id": feedback.id,
        "body_hash": short_body_hash(same),  # the same as ever where nothing more is told
        "value": canonical(value),
        "late": False,
        "received_at": feedback.received_at,
        "api_key": feedback.api_key,  # no part of the body: a key may be rotated between two tries
        **more,
    }


def feedback_value(row: Row) -> Feedback:
    """The feedback of a row."""
    value = json.loads(row["value"])
    return Feedback(
        id=FeedbackId(row["id"]),
        decision_id=DecisionId(row["decision_id"]),
        kind=row["kind"],
        value=tuple(value) if isinstance(value, list) else value,
        source=row["source"],
        received_at=row["received_at"],
        rater=row["rater"],
        event=row["event"],
        facts={} if row["facts"] is None else json.loads(row["facts"]),
        api_key=row.get("api_key"),  # archived rows of before have none
    )


def update_row(update: Update, *, feedback_at: float | None, disagreement: float | None = None) -> dict[str, Any]:
    """A row of `updates`; what the policy saw stays in `decisions`."""
    return {
        "policy": update.policy,
        "seq": update.seq,
        "decision_id": update.decision_id,
        "arm": update.arm,
        "propensity": update.propensity,
        **asdict(update.reward),
        "terms": canonical(dict(update.reward.terms)),
        "sample_weight": None if update.reward.sample_weight == 1.0 else update.reward.sample_weight,
        "feedback_ids": canonical(list(update.feedback_ids)),
        "feedback_at": feedback_at,
        "made_at": update.made_at,
        "disagreement": disagreement,
    }


def reward_value(row: Row) -> Reward:
    """The reward in a row of `updates`."""
    return Reward(
        value=row["value"],
        quality=row["quality"],
        cost=row["cost"],
        weight=row["weight"],
        minimum=row["minimum"],
        maximum=row["maximum"],
        terms=json.loads(row["terms"]),
        preset=row["preset"],
        source=row["source"],
        judged_by=row["judged_by"],
        raw_quality=row["raw_quality"],
        sample_weight=1.0 if row["sample_weight"] is None else row["sample_weight"],
    )


def update_value(row: Row, *, decision: Decision) -> Update:
    """The update of a row of `updates` and the decision that it is about."""
    return Update(
        policy=PolicyLabel(row["policy"]),
        seq=row["seq"],
        decision_id=DecisionId(row["decision_id"]),
        query=decision.query,
        arm=ArmName(row["arm"]),
        arms=decision.arms,
        pmf=decision.pmf,
        scores=decision.scores,
        propensity=row["propensity"],
        reward=reward_value(row),
        feedback_ids=tuple(FeedbackId(i) for i in json.loads(row["feedback_ids"])),
        features=decision.features,
        made_at=row["made_at"],
        imported=IMPORTED in decision.facts,
    )


def snapshot_row(info: SnapshotInfo) -> dict[str, Any]:
    """A row of `snapshots`."""
    return {
        "version": info.version,
        "policy": info.policy,
        "algorithm": info.algorithm,
        "params": canonical(dict(info.params)),
        "params_sha256": body_hash(dict(info.params)),
        "last_seq": info.last_seq,
        "sha256": info.sha256,
        "encoder_hash": info.encoder_hash,
        "made_at": info.made_at,
    }


def snapshot_value(row: Row) -> SnapshotInfo:
    """The snapshot of a row."""
    values = {name: value for name, value in row.items() if name != "params_sha256"}
    return SnapshotInfo(**values | {"params": json.loads(row["params"])})

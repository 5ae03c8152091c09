"""Conversion of values to rows and back. Columns are plain values, JSON (which keeps float64 exact), or bytes."""

import hashlib
import json
from binascii import b2a_base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from itertools import compress
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined] # typeshed lacks the first
from operator import attrgetter, is_not
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from sqlalchemy import Table

from ragbandit.router.storage.rows.queried_facts import FORCED, QueriedFacts, arm_by_of, arm_by_of_query
from ragbandit.router.storage.sql.bulk_insert import Row
from ragbandit.router.storage.sql.json_columns import json_object, object_at, object_or_empty
from ragbandit.router.storage.sql.tables import decisions, feedback, snapshots, updates
from ragbandit.shared.errors import StoreError
from ragbandit.shared.texts.formats import number_or_name
from ragbandit.shared.texts.json_values import sorted_json_bytes
from ragbandit.shared.types import (
    ERASED,
    IMPORTED,
    SENT_ID,
    WHOLE,
    ArmBy,
    ArmName,
    Budget,
    Continues,
    Decision,
    DecisionId,
    Features,
    Feedback,
    Message,
    Query,
    Reward,
    RunBy,
    Sent,
    SnapshotInfo,
    Update,
    continues_of,
    is_released,
    request_json,
    sent_of,
    terms_of,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


Value = TypeVar("Value", bound="DataclassInstance")


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """How a field is converted to its column (`write`) and back (`read`)."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any] = lambda value: value


def from_json(kind: type[Value], values: Mapping[str, Any]) -> Value:
    """Make a dataclass from `values`. Unknown names, which a newer release has written, are ignored."""
    return kind(**{name: values[name] for name in _names(kind) if name in values})


@lru_cache(maxsize=64)
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


class UnreadableFieldError(ValueError):
    """A column cannot be read. field: name of the column."""

    def __init__(self, field: str, error: Exception) -> None:
        super().__init__(f"{field}: {error}")
        self.field = field


class TableRows(Generic[Value]):
    """Converts a dataclass to rows of a table and back; fields and columns have the same names."""

    def __init__(self, table: Table, kind: type[Value], *, excluded: tuple[str, ...] = (), **forms: Form) -> None:
        """excluded: fields that the caller converts. forms: conversions of fields; the others are stored unchanged."""
        self._kind = kind
        self._forms = forms
        #: the columns, in the order of the fields
        self.names = tuple(field.name for field in fields(kind) if field.name in {*table.columns.keys()} - {*excluded})
        self._columns = attrgetter(*self.names)

    def row(self, value: Value) -> dict[str, Any]:
        columns: dict[str, Any] = dict(zip(self.names, self._columns(value), strict=True))
        for name, form in self._forms.items():
            columns[name] = form.write(columns[name])
        return columns

    def value(self, row: Row, **others: Any) -> Value:
        """The value of a row. others: fields of `without`, already converted. Raises UnreadableFieldError."""
        return self.read([row[name] for name in self.names], **others)

    def read(self, values: Sequence[Any], **others: Any) -> Value:
        """Like `value`, from columns in the order of `names`."""
        columns = dict(zip(self.names, values, strict=True))
        for name, form in self._forms.items():
            try:
                columns[name] = form.read(columns[name])
            except (ValueError, TypeError, AttributeError) as error:
                raise UnreadableFieldError(name, error) from error
        return self._kind(**columns, **others)


_HALF_MARK: Final = b"\x01"
_HALF: Final = np.dtype("<f2")
_FULL: Final = np.dtype("<f4")


def features_bytes(features: Features | None) -> bytes | None:
    """The bytes of a vector, shape (d,): float16 if that is exact, else float32."""
    if features is None:
        return None
    full = np.ascontiguousarray(features, dtype=_FULL)
    with np.errstate(over="ignore"):
        half = full.astype(_HALF)
    return _HALF_MARK + half.tobytes() if (half == full).all() else full.tobytes()


def features_value(raw: bytes | None) -> Features | None:
    """The inverse of `features_bytes`: a float32 vector, shape (d,). Raises ValueError for other bytes."""
    if raw is None:
        return None
    if len(raw) % 2 == 0:
        return np.frombuffer(raw, dtype=_FULL).astype(np.float32)
    if bytes(raw[:1]) != _HALF_MARK:  # `raw` may be a bytearray or memoryview
        raise ValueError("these bytes are not features")
    return np.frombuffer(memoryview(raw)[1:], dtype=_HALF).astype(np.float32)


def features_rows(cells: Sequence[bytes | None]) -> npt.NDArray[np.float16 | np.float32] | None:
    """The vectors of n cells, shape (n, d), as they are stored; None unless all cells have the same form and width.

    Raises ValueError for other bytes.
    """
    first = cells[0] if cells else None
    if first is None or {None if cell is None else len(cell) for cell in cells} != {len(first)}:
        return None
    raw = np.frombuffer(b"".join(cells), dtype=np.uint8).reshape(len(cells), -1)  # type: ignore[arg-type] # no None
    if len(first) % 2 == 0:
        return raw.view(_FULL)
    if (raw[:, 0] != _HALF_MARK[0]).any():
        raise ValueError("these bytes are not features")
    return np.ascontiguousarray(raw[:, 1:]).view(_HALF)


_DEFAULT: Final = json.JSONEncoder().default


def canonical(value: object) -> str:
    """JSON with sorted keys and no spaces, so that equal values give equal texts."""
    # As `json.JSONEncoder.encode` with sort_keys=True, separators=(",", ":") and ensure_ascii=False, in one call.
    return "".join(c_make_encoder({}, _DEFAULT, encode_basestring, None, ":", ",", True, False, True)(value, 0))


def body_hash(body: object, *, errors: Literal["surrogatepass", "replace"] = "surrogatepass") -> str:
    """sha256 of the canonical JSON, 43 digits of base64; a repeated id with another hash is a conflict.

    errors: how lone surrogates are encoded; "replace" gives question marks, as in stored texts
    """
    data = sorted_json_bytes(body)
    if data is None:
        # Lone surrogates from Python callers are accepted here, since later checks raise a better error for them.
        data = canonical(body).encode("utf-8", errors)
    digest = hashlib.sha256(data).digest()
    return b2a_base64(digest, newline=False).rstrip(b"=").decode()


def query_hash(query: Query, *, run_by: RunBy) -> str:
    """Hash that is equal for repetitions of a request. A rewritten question has the hash of its original words."""
    conversation = _conversation(query)
    body = {
        "arms": None if query.arms is None else list(query.arms),
        "budget": budget_caps(query.budget),
        "context": dict(query.context),
        "run_by": run_by,
        "tenant": query.tenant,
        "text": query.text if query.asked is None else query.asked,
    }
    return body_hash(body | ({"conversation": conversation} if conversation else {}))


def _conversation(query: Query) -> dict[str, Any]:
    """Values that only queries with a conversation, a chosen arm or a weight of cost have; {} for a plain question."""
    if not (
        (query.own_session or query.messages or query.asked is not None or query.arm_by or query.unit)
        or query.aim
        or query.continues.chat is not None
        or query.cost_weight is not None
    ):
        return {}
    parts = {
        "asked": query.asked,
        FORCED: query.arm_by is not None or None,
        "messages": [[message.role, message.text] for message in query.messages] or None,
        "session": query.own_session,
        "unit": query.unit,
        "price": price_text(query.cost_weight),
        "aim": dict(query.aim) or None,
        "chat": query.continues.chat,
    }
    return {name: value for name, value in parts.items() if value is not None}


def price_text(weight: float | str | None) -> str | None:
    """The column `price`: the caller's weight of cost, a name or a number, as text."""
    return weight if weight is None or isinstance(weight, str) else repr(float(weight))


def price_value(text: str | None) -> float | str | None:
    return None if text is None else number_or_name(text)


def _request(query: Query) -> str | None:
    parts = _conversation(query)
    for name in ("session", "price", "chat"):  # these parts have columns, or are in `edge`
        parts.pop(name, None)
    if edge := request_json(query):
        parts["edge"] = edge
    return canonical(parts) if parts else None


def client_records_of(request: str | None) -> Mapping[str, Any]:
    """The JSON of the records of a stored query; {} if it is unreadable. request: the column `decisions.request`."""
    return object_at(object_or_empty(request), "edge")


def without_words(request: str | None, *, arm_by: ArmBy | None, is_erased: bool) -> str | None:
    """The column `request` without texts of users. FORCED, the aim, and ids and hashes stay.

    arm_by: `Decision.arm_by`. is_erased: True for an erased row, which keeps its links between responses, and which
        no request or rating finds. False for a new row of a store without texts: it has no links, and can be found
    """
    values = object_or_empty(request)
    edge = object_at(values, "edge")
    sent, continues = sent_of(edge), continues_of(edge)
    left = Sent(may_fail_over=sent.may_fail_over, pick=sent.pick)
    links = Continues(loop=continues.loop, failed=continues.failed)
    if is_erased:
        links = replace(links, previous=continues.previous, quoted=continues.quoted)
    else:
        left = replace(left, named_id=sent.named_id, message=sent.message)
        links = replace(links, conversation=continues.conversation)
    parts = {name: values[name] for name in ("aim", FORCED) if values.get(name)}
    kept = Query(text="", sent=left, continues=links, arm_by=arm_by_of_query(arm_by, loop=links.loop))
    if edge := request_json(kept):
        parts["edge"] = edge
    return canonical(parts) if parts else None


def _list(values: Sequence[Any] | None) -> str | None:
    return None if values is None else canonical(values)


def budget_caps(budget: Budget) -> dict[str, float]:
    """The caps of a budget that are set, by name."""
    caps = _CAPS(budget)
    return dict(compress(zip(_names(Budget), caps, strict=True), map(_IS_SET, caps)))


_CAPS: Final = attrgetter(*_names(Budget))
_IS_SET: Final = partial(is_not, None)


def scores_value(text: str | None) -> tuple[float, ...] | None:
    return None if text is None else tuple(json.loads(text))


@lru_cache(maxsize=256)
def arms_value(text: str) -> tuple[ArmName, ...]:
    return tuple(json.loads(text))


JSON_OBJECT: Final = Form(write=lambda value: canonical(dict(value)) if value else "{}", read=json_object)
_LIST: Final = Form(write=canonical, read=lambda text: tuple(json.loads(text)))

_DECISION: Final = TableRows(
    decisions,
    Decision,
    excluded=("arm_by",),  # `arm_by_of` reads this field, also from rows of former releases
    arms=Form(write=canonical, read=arms_value),
    pmf=Form(write=canonical, read=scores_value),
    scores=Form(write=_list, read=scores_value),
    seed=Form(write=str, read=int),
    facts=JSON_OBJECT,
    features=Form(write=features_bytes, read=features_value),
)
#: fields of Query whose columns have the same names
_QUERY: Final = TableRows(
    decisions,
    Query,
    excluded=("id", "arms", "arm_by", "cost_weight"),
    context=JSON_OBJECT,
    budget=Form(
        write=lambda budget: canonical(budget_caps(budget)), read=lambda text: from_json(Budget, json_object(text))
    ),
)
_OBJECT_OR_NULL: Final = Form(write=lambda facts: canonical(dict(facts)) if facts else None, read=json_object)


def _read_feedback_value(text: str) -> Any:
    value = json.loads(text)
    return tuple(value) if isinstance(value, list) else value


_FEEDBACK: Final = TableRows(
    feedback, Feedback, value=Form(write=canonical, read=_read_feedback_value), facts=_OBJECT_OR_NULL
)
_NAMES_OR_NULL: Final = Form(
    write=lambda names: canonical(list(names)) if names else None,
    read=lambda text: () if text is None else tuple(json.loads(text)),
)
_UPDATE: Final = TableRows(updates, Update, feedback_ids=_LIST, restarts=_NAMES_OR_NULL)
#: columns of `updates` that are fields of Reward
REWARD: Final = TableRows(
    updates,
    Reward,
    # Cached, since many rows have the same prices.
    terms=Form(write=JSON_OBJECT.write, read=lru_cache(maxsize=64)(json.loads)),
    surrogates=_OBJECT_OR_NULL,
)
_SNAPSHOT: Final = TableRows(snapshots, SnapshotInfo, params=JSON_OBJECT)
feedback_value = _FEEDBACK.value
reward_value = REWARD.value
snapshot_value = _SNAPSHOT.value


def decision_row(decision: Decision) -> dict[str, Any]:
    query = decision.query
    converted = {"allowed": _list(query.arms), "request": _request(query), "price": price_text(query.cost_weight)}
    converted["body_hash"] = query_hash(query, run_by=decision.run_by)
    facts = QueriedFacts.of_decision(decision)._asdict()
    return {**_QUERY.row(query), **converted, **_DECISION.row(decision), **facts}


def decision_value(row: Row) -> Decision:
    """The decision of a row. Raises ValueError, TypeError or KeyError; UnreadableFieldError names the column."""
    request, arm_by = json_object(row["request"]), arm_by_of(row)
    edge = object_at(request, "edge")
    continues = continues_of(edge)
    query = _QUERY.value(
        row,
        id=DecisionId(row["id"]),
        arms=None if row["allowed"] is None else tuple(json.loads(row["allowed"])),
        unit=request.get("unit"),
        messages=tuple(Message(role=role, text=text) for role, text in request.get("messages", ())),
        asked=request.get("asked"),
        arm_by=arm_by_of_query(arm_by, loop=continues.loop) if request.get(FORCED) else None,
        sent=sent_of(edge),
        continues=continues,
        terms=terms_of(edge, factor=row["budget_factor"]),
        cost_weight=price_value(row["price"]),
        aim=request.get("aim", {}),
    )
    return _DECISION.value(row, query=query, arm_by=arm_by)


def read_decision(row: Row) -> Decision | StoreError:
    """The decision of a row. StoreError is returned, not raised, so that other rows can still be read."""
    try:
        return decision_value(row)
    except (ValueError, TypeError, KeyError) as error:
        return StoreError(f"the row of decision {row['id']} cannot be read: {error}", remedy="see: `ragbandit verify`")


def feedback_row(feedback: Feedback) -> dict[str, Any]:
    """A row of `feedback`. `late` is False; the caller may change it."""
    return _FEEDBACK.row(feedback) | {"body_hash": feedback_body_hash(feedback), "late": False}


def erased_feedback(row: Row) -> dict[str, Any]:
    """The columns of a row of `feedback` that erasure changes. Scores of a judge stay, without the reasons."""
    is_label = row["kind"] == "label" and row["value"] != "null"
    given = object_or_empty(row["facts"])
    ids = {SENT_ID: given[SENT_ID]} if SENT_ID in given else {}
    facts = None if row["facts"] is None else canonical(without_texts(given) | ids)
    rater = None if row["rater"] is None else ERASED
    return {"value": "[]" if is_label else row["value"], "rater": rater, "facts": facts}


def id_of_tenant(row: Row, *, tenant: str) -> dict[str, Any]:
    """New `id` and `facts` of a row of `feedback` whose id another tenant has used. Callers cannot send the new id."""
    given = f"{tenant} {row['id']}".encode()
    facts = canonical(object_or_empty(row["facts"]) | {SENT_ID: row["id"]})
    return {"id": f":{hashlib.sha256(given).hexdigest()[:40]}", "facts": facts}


def without_texts(value: Any) -> Any:
    """Parsed JSON without its text values, since a model may have written them."""
    if isinstance(value, dict):
        return {name: without_texts(item) for name, item in value.items() if not isinstance(item, str)}
    if isinstance(value, list):
        return [without_texts(item) for item in value if not isinstance(item, str)]
    return value


def feedback_body_hash(feedback: Feedback) -> str:
    """Hash of the fields in which repeated feedback must be equal. API keys may differ, since clients replace them."""
    body = {
        "decision_id": feedback.decision_id,
        "kind": feedback.kind,
        # The value of an event comes from a setting, which may have changed between two requests.
        "value": None if feedback.kind == "event" else feedback.value,
        "source": feedback.source,
    }
    sent = {name: fact for name, fact in feedback.facts.items() if name != SENT_ID}
    facts = canonical(sent) if sent else None
    optional = {"rater": feedback.rater, "event": feedback.event, "facts": facts}
    return body_hash(body | {name: value for name, value in optional.items() if value is not None})


def update_row(update: Update, *, feedback_at: float | None) -> dict[str, Any]:
    return _UPDATE.row(update) | REWARD.row(update.reward) | {"feedback_at": feedback_at}


def update_value(row: Row, *, decision: Decision) -> Update:
    inputs: dict[str, Any] = {name: getattr(decision, name) for name in ("arms", "pmf", "scores", "features")}
    inputs |= {"imported": IMPORTED in decision.facts, "released": is_released(decision.facts)}
    return _UPDATE.value(row, query=decision.served, reward=reward_value(row), **inputs)


def snapshot_row(info: SnapshotInfo) -> dict[str, Any]:
    return _SNAPSHOT.row(info) | {"params_sha256": body_hash(dict(info.params))}


def reward_at(row: Mapping[str, Any], *, weight: float) -> float:
    """The reward with this weight of cost; the stored reward if the question or the preset has no weight.

    row: row of `updates`, with `decisions.cost_weight`
    """
    if row["cost_weight"] is None or row["preset"] in WHOLE:
        return float(row["value"])
    return float(min(max(row["quality"] - weight * row["cost"], row["minimum"]), row["maximum"]))

"""dsjson, the Decision Service's log (Agarwal et al. 2016), as `vw --dsjson` reads it: one event a line.

An event has the cost (minus the reward), the drawn action first in `a` with `p` beside it, the shared features under
`c` (the question's embedding as `e`, the context as `context`, an object in it being a namespace of its own) and an
object per arm in `_multi`, its name in the namespace `a`: `-q ea` crosses question and arm.
What dsjson has no place for stands under `_ragbandit`, so that our rows come back whole.

A row from elsewhere has the event's whole `c` as its context, namespaces and all, with the actions' features under the
key `_multi`; a list of numbers under `e` becomes the features. Whoever writes such a row as dsjson gets that `c` again,
also after it has been in a store.

In logs from elsewhere, probabilities have the precision of float32: `_label_probability` may differ from `p` by 1e-6,
and `p` is taken. A row that others were dropped beside (pdrop > 0) stands for several, which a row of ours cannot say:
it is refused. So are rows that were never shown (_skipLearn), and rows without an outcome, whose cost of 0 is no more
than a default.
"""

import datetime
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ragbandit.router.offline.estimation.bandit_log import SUM_TOLERANCE
from ragbandit.router.offline.logs import jsonl
from ragbandit.router.offline.logs.records import BadRow, Defaults, Logged, Record, record_of
from ragbandit.router.offline.logs.row_checks import number
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Decision

_KNOWN = (
    "_label_cost",
    "_label_probability",
    "_label_Action",
    "_labelIndex",
    "_skipLearn",
    "_ragbandit",
    "Timestamp",
    "Version",
    "EventId",
    "a",
    "p",
    "c",
    "o",
    "VWState",
    "pdrop",
)
#: stands in `_ragbandit` for a context that is `c` itself
_WHOLE = "c"
#: where an action's object says its name
_NAMES = ("id", "name", "arm", "_tag", "tag")


def read(path: str | Path, *, defaults: Defaults) -> Iterator[Logged | BadRow]:
    """The rows of the file, in its order. Raises InvalidInput for a file that is unreadable or empty."""
    return jsonl.read(path, defaults=defaults, record=_record)


def write(path: str | Path, rows: Iterable[Logged]) -> int:
    """Write the rows; how many. The file is there when all of it is. Raises InvalidInput."""
    return jsonl.write(path, rows, entry=_event_of)


def _event_of(row: Logged) -> Record:
    """The row as an event, its keys in the order in which they are written."""
    decision, record = row.decision, record_of(row)
    drawn = decision.arms.index(decision.arm)
    order = [drawn, *(place for place in range(len(decision.arms)) if place != drawn)]
    shared, context = _shared(decision)
    beside = {
        key: value for key, value in record.items() if key not in ("id", "arms", "pmf", "arm", "features", "context")
    }
    beside["reward"] = {key: value for key, value in record["reward"].items() if key != "value"}
    if context is not None:
        beside["context"] = context
    return {
        "_label_cost": -row.reward.value,
        "_label_probability": decision.propensity,
        "_label_Action": drawn + 1,
        "_labelIndex": drawn,
        "o": [{"v": row.reward.value, "EventId": decision.id}],
        "Timestamp": _timestamp(decision.made_at),
        "Version": "1",
        "EventId": decision.id,
        "a": [place + 1 for place in order],
        "c": shared,
        "p": [decision.pmf[place] for place in order],
        "VWState": {"m": decision.version},
        "pdrop": 0.0,
        "_ragbandit": beside,
    }


def _shared(decision: Decision) -> tuple[Record, Record | str | None]:
    """`c`, and what to keep of the context beside it; None where nothing is lost."""
    context = dict(decision.query.context)
    features: Record = {} if decision.features is None else {"e": decision.features.tolist()}
    if _is_whole(decision):
        return features | context, _WHOLE
    readable = _readable(context)
    arms = {"_multi": [{"a": {"id": arm}} for arm in decision.arms]}
    return features | ({"context": readable} if readable else {}) | arms, None if readable == context else context


def _is_whole(decision: Decision) -> bool:
    """True if the context is an event's `c`, with an object for every arm."""
    context = decision.query.context
    several = context.get("_multi")
    if not isinstance(several, list) or not all(isinstance(one, dict) for one in several):
        return False
    hidden = "e" in context and (decision.features is not None or _is_embedding(context["e"]))
    return _arms(several) == list(decision.arms) and not hidden


def _is_embedding(value: object) -> bool:
    numbers = isinstance(value, list) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in value)
    return numbers and bool(value)


def _readable(context: Mapping[str, object]) -> Record:
    """The features that Vowpal Wabbit accepts: it has other uses for keys with an underscore, and no null.

    An object is a namespace; a name of one that does not begin in ASCII makes it crash. A list of texts is a feature
    for each of them.
    """
    features: Record = {}
    for key, value in context.items():
        if not key or key.startswith("_"):
            continue
        if isinstance(value, dict) and key[0].isascii():
            features[key] = _readable(value)
        elif isinstance(value, list) and all(isinstance(one, str) for one in value):
            features |= {f"{key}={one}": 1 for one in value}
        elif isinstance(value, str | int | float):
            features[key] = value
    return features


def _timestamp(made_at: float) -> str | None:
    """ISO 8601 in UTC; None for a time no calendar has."""
    try:
        return datetime.datetime.fromtimestamp(made_at, tz=datetime.UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None


def _record(event: Record) -> Record:
    """The event's record. Raises InvalidInput."""
    _check_usable(event)
    ours = event.get("_ragbandit")
    shared = _object(event.get("c"), "c")
    several = shared.get("_multi")
    if not isinstance(several, list) or not several:
        raise InvalidInput("is missing", field="c._multi", remedy="log an object per action")
    arms = _arms(several)
    drawn, pmf = _drawn(event, count=len(arms))
    beside = {} if ours is None else _object(ours, "_ragbandit")
    whole = ours is None or beside.get("context") == _WHOLE
    embedded = not whole or _is_embedding(shared.get("e"))
    rest = {key: value for key, value in shared.items() if key != "e" or not embedded}
    record: Record = {
        "id": event.get("EventId"),
        "context": rest if whole else shared.get("context", {}),
        "features": shared.get("e") if embedded else None,
        "arms": arms,
        "pmf": pmf,
        "arm": arms[drawn],
        "propensity": pmf[drawn],
    }
    cost = number(event.get("_label_cost"), "_label_cost")
    if ours is not None:
        beside = {key: value for key, value in beside.items() if key != "context" or not whole}
        return record | beside | {"reward": _object(beside.get("reward"), "_ragbandit.reward") | {"value": -cost}}
    record |= {key: value for key, value in event.items() if key not in _KNOWN}
    state = event.get("VWState")
    version = state.get("m") if isinstance(state, dict) else None
    return record | {"version": version, "reward": -cost, "made_at": _seconds(event.get("Timestamp"))}


def _check_usable(event: Record) -> None:
    """Raises InvalidInput for an event that nothing can be learned from as it stands."""
    if event.get("_skipLearn") is True:
        raise InvalidInput("the action was never shown", field="_skipLearn", remedy="leave the row out")
    dropped = number(event.get("pdrop", 0.0), "pdrop")
    if dropped != 0.0:
        reason = f"the row stands for {1.0 / (1.0 - dropped):.3g}" if 0.0 < dropped < 1.0 else "is no share below 1"
        raise InvalidInput(f"{dropped:g}: {reason}", field="pdrop", remedy="read the log before rows were dropped")
    if not event.get("o") and not event.get("_label_cost"):
        raise InvalidInput("no outcome was observed", field="o", remedy="leave the row out, or join its outcome")


def _arms(several: list[Any]) -> list[str]:
    """A name for every object of `_multi`: its own, where all have one and no two the same; else action_1, ..."""
    names = [_name(one) for one in several]
    if None in names or len(set(names)) != len(names):
        return [f"action_{place}" for place in range(1, len(several) + 1)]
    return [str(name) for name in names]


def _name(one: object) -> str | None:
    """Name of an action, also from inside one of its namespaces."""
    if not isinstance(one, dict):
        return None
    for namespace in (one, *(value for value in one.values() if isinstance(value, dict))):
        for key in _NAMES:
            if isinstance(namespace.get(key), str) and namespace[key]:
                return str(namespace[key])
    return None


def _drawn(event: Record, *, count: int) -> tuple[int, list[float]]:
    """Place of the drawn arm in `_multi`, and the pmf in that order."""
    actions, given = event.get("a"), event.get("p")
    if not isinstance(actions, list) or sorted(map(repr, actions)) != sorted(map(repr, range(1, count + 1))):
        raise InvalidInput(f"is no order of 1 to {count}", field="a", remedy="log all actions, the drawn one first")
    if not isinstance(given, list) or len(given) != count:
        raise InvalidInput("does not fit a", field="p", remedy="log the probability of every action in a")
    pmf = [0.0] * count
    for action, value in zip(actions, given, strict=True):
        pmf[action - 1] = number(value, "p")
    chosen = event.get("_label_Action", actions[0])
    if isinstance(chosen, bool) or not isinstance(chosen, int) or not 1 <= chosen <= count:
        raise InvalidInput(
            f"{chosen!r:.20} is not in 1 to {count}", field="_label_Action", remedy="count the actions from 1"
        )
    if event.get("_labelIndex", chosen - 1) != chosen - 1:
        raise InvalidInput("is not _label_Action - 1", field="_labelIndex", remedy="count the actions from 0")
    label = number(event.get("_label_probability", pmf[chosen - 1]), "_label_probability")
    if not 0.0 < label <= 1.0:
        raise InvalidInput(
            f"{label:.9g} is outside (0, 1]", field="_label_probability", remedy="log the probability it had"
        )
    if abs(label - pmf[chosen - 1]) > SUM_TOLERANCE:
        reason = f"{label!r}, but p gives the drawn action {pmf[chosen - 1]!r}"
        raise InvalidInput(reason, field="_label_probability", remedy="log both from the same draw")
    return chosen - 1, pmf


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    try:
        when = datetime.datetime.fromisoformat(str(value))
    except ValueError as error:
        raise InvalidInput(f"{value!r:.40} is no time", field="Timestamp", remedy="write ISO 8601") from error
    return (when if when.tzinfo else when.replace(tzinfo=datetime.UTC)).timestamp()


def _object(value: object, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput("is missing or no object", field=field, remedy="write an object")
    return value

"""Logs of Vowpal Wabbit and of Azure Personalizer (dsjson): each event becomes a record as `jsonl` reads it.

    {"_label_cost": -1, "_label_probability": 0.8, "_label_Action": 2, "_labelIndex": 1, "EventId": "e1", "a": [2, 1],
     "p": [0.8, 0.2], "Timestamp": "2026-08-01T00:00:00Z", "pdrop": 0.0, "o": [{"v": 1.0, "EventId": "e1"}],
     "c": {"user": {"plan": "pro"}, "_multi": [{"i": {"id": "mini"}}, {"i": {"id": "large"}}]}}

`a` has the numbers of the actions from 1, the drawn one first, and `p` their probabilities. The reward is minus the
cost, which contains the service's default reward. The question is a feature whose name is in _QUESTIONS, or else the
context in words with the event's id, since two events with one context are no repeated question. Two kinds of lines are
no decisions: events that were never shown, and rewards without their event.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from ragbandit.router.offline.logs import cells
from ragbandit.router.offline.logs.records import Parse, first_bytes, records
from ragbandit.router.policies.draw import seed_of
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.json_lines import lines

Event = Mapping[str, Any]

#: keys of an event with a decision; a line with none of them is a reward or an activation without its event
_DECIDED: Final = frozenset({"c", "a", "p", "_outcomes", "_label_cost", "_label_Cost"})
_FORM: Final = rb'(\xef\xbb\xbf)?\s*[\[{].*"(_label(_cost|_probability|_Action|Index|_ca)|_outcomes|VWState)"\s*:'
#: keys that the record does not keep; all others are kept, for example the pmf of a candidate
_READ: Final = re.compile(
    r"_label.*|_outcomes|EventId|Timestamp|Version|[acpo]|VWState|pdrop|_skipLearn|DeferredAction"
)
_PDROP: Final = re.compile(rb'"pdrop"\s*:\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)')
#: largest relative difference between probabilities of one event, which are float32 in words
_SLACK: Final = 1e-3
_LONGEST: Final = 64  #: maximum number of characters of an arm's name
_LONGEST_TEXT: Final = 4_000  #: maximum number of characters of a context in words
#: last names of features that are the question, in order of precedence
_QUESTIONS: Final = ("question", "query", "prompt", "utterance", "message", "_text", "text")
#: largest number of actions without a name whose features are kept, to notice that they change their places
_MOST_UNNAMED: Final = 10_000
_ONE_CHOICE: Final = "keep one slot for each line: docs/replay.md, A log of Personalizer"


def log_records(path: Path, *, keys: Sequence[str]) -> Iterator[tuple[int, Parse]]:
    """Yield the records of a file; for a file in dsjson, the events that count as records."""
    is_dsjson = re.match(_FORM, first_bytes(path), re.DOTALL)
    return _events(path) if is_dsjson else records(path, keys=keys)


def _events(path: Path) -> Iterator[tuple[int, Parse]]:
    """Yield (number, parser) of every event that counts. A parser raises InvalidInput if its event cannot be used."""
    most_dropped, places = _most_dropped(path), _Places()
    for number, parse in records(path, keys=("EventId",)):
        try:
            event = parse()
            if _counts(event, most_dropped=most_dropped):
                yield number, partial(_record, event, places=places)
        except InvalidInput as error:
            yield number, partial(_refuse, error)


def _refuse(error: InvalidInput) -> dict[str, Any]:
    raise error


def _most_dropped(path: Path) -> float:
    """The largest share, below 1, of the events that were dropped before logging. Events with share 1 never count."""
    shares = (float(match[1]) for _, raw in lines(path) if (match := _PDROP.search(raw)))
    return max((share for share in shares if share < 1.0), default=0.0)


def _counts(event: Event, *, most_dropped: float) -> bool:
    """Whether the event was shown, and is kept. Raises InvalidInput if `pdrop` is not a number.

    If the dropped share differs between events, more are left out at random, as if the largest had applied to all.
    """
    observations = event.get("o")
    is_activated = isinstance(observations, list) and any(
        isinstance(one, dict) and one.get("ActionTaken") is True for one in observations
    )
    never_shown = event.get("_skipLearn", bool(event.get("DeferredAction")) and not is_activated)
    if never_shown or not _DECIDED & event.keys():
        return False
    dropped = cells.convert_value(cells.cell_number, event.get("pdrop") or 0.0, field="pdrop")
    if not 0.0 <= dropped < 1.0:
        return False
    share = (1.0 - most_dropped) / (1.0 - float(dropped))
    return seed_of(str(event.get("EventId"))) < share * 2.0**64


@dataclass(kw_only=True, slots=True)
class _Places:
    """Checks that actions without a name keep their places, because the place serves as the name."""

    first: dict[str, int] = field(default_factory=dict)  #: features of an action -> its place when it first came

    def check(self, features: Sequence[str]) -> None:
        """Raise InvalidInput if actions have changed their places. features: of the actions without a name."""
        here = {each: place for place, each in enumerate(features) if features.count(each) == 1}
        for each, place in here.items():
            if len(self.first) < _MOST_UNNAMED and self.first.setdefault(each, place) != place:
                message = f"action {place + 1} of this event was action {self.first[each] + 1} before, and has no name"
                raise InvalidInput(message, field="c._multi", remedy='give every action a name: "_tag": "NAME"')


def _record(event: Event, *, places: _Places) -> dict[str, Any]:
    context: Any = event.get("c")
    context = context if isinstance(context, dict) else {}
    slot = _slot(event, context=context)
    actions = context.get("_multi")
    if not isinstance(actions, list) or not all(isinstance(action, dict) for action in actions):
        raise InvalidInput("the value is missing", field="c._multi", remedy="log the actions that were offered")
    names = _names(actions, places=places)
    kept = {key: value for key, value in event.items() if not _READ.fullmatch(key)}
    features = dict(_leaves(context))
    record = {"id": event.get("EventId"), "reward": _reward(slot), "context": features}
    record["text"] = _question({**features, "_text": context.get("_text")}, key=event.get("EventId"))
    if event.get("Timestamp") is not None:
        record["made_at"] = event["Timestamp"]
    return {**kept, **record, **_draw(slot, names=names)}


def _question(features: Event, *, key: Any) -> str:
    last = {path.rpartition(".")[2].lower(): value for path, value in reversed([*features.items()])}
    asked = next((last[name] for name in _QUESTIONS if isinstance(last.get(name), str) and last[name].strip()), None)
    words = ", ".join(f"{path} {value}" for path, value in features.items() if value is not None)
    return str(asked) if asked else f"{words:.{_LONGEST_TEXT}} ({key})".strip()


def _slot(event: Event, *, context: Event) -> Event:
    """The event as one choice: a slot has its own actions, from 0, and its own cost. Raises InvalidInput."""
    if "_label_ca" in event:
        message = "the event has a continuous action"
        raise InvalidInput(message, field="_label_ca", remedy="replay judges choices among arms")
    outcomes, slots = event.get("_outcomes"), context.get("_slots")
    if outcomes is None and not slots:
        return event
    if not isinstance(outcomes, list) or len(outcomes) != 1 or not isinstance(outcomes[0], dict):
        count = max(len(each) for each in (outcomes, slots, ()) if isinstance(each, list | tuple))
        message = f"the event fills {count} slots, and a row is one choice"
        raise InvalidInput(message, field="_outcomes" if outcomes else "c._slots", remedy=_ONE_CHOICE)
    drawn, shares = ([each] if isinstance(each, int | float) else each for each in map(outcomes[0].get, ("_a", "_p")))
    ranked = [number + 1 for number in _whole(drawn)] or drawn
    own = {"a": ranked, "p": shares, "o": outcomes[0].get("_o", event.get("o"))}
    cost = {key: value for key, value in outcomes[0].items() if key == "_label_cost"}
    return {"pdrop": event.get("pdrop"), "_label_cost": event.get("_label_cost"), **cost, **own}


def _whole(value: Any) -> list[int]:
    """A list of whole numbers; empty for anything else."""
    return value if isinstance(value, list) and all(type(number) is int for number in value) else []


def _reward(event: Event) -> float:
    """Minus the cost, or the only reward that was observed. Raises InvalidInput."""
    cost = event.get("_label_cost", event.get("_label_Cost"))
    if cost is not None:
        return 0.0 - float(cells.convert_value(cells.cell_number, cost, field="_label_cost"))
    observations = event.get("o") if isinstance(event.get("o"), list) else []
    observed = [one["v"] for one in observations or () if isinstance(one, dict) and "v" in one]
    if len(observed) == 1:
        return float(cells.convert_value(cells.cell_number, observed[0], field="o.v"))
    reason = f"the event has {len(observed)} rewards, and no cost" if observed else "the value is missing"
    raise InvalidInput(reason, field="_label_cost", remedy="write the negative reward as _label_cost")


def _draw(event: Event, *, names: Sequence[str]) -> dict[str, Any]:
    """The arms, the pmf and the drawn arm; without `p`, as in VW's own JSON, the arms and the propensity."""
    ranked, shares = _whole(event.get("a")), event.get("p")
    drawn = _drawn_number(event, count=len(names))
    label = event.get("_label_probability", event.get("_label_Probability"))
    if event.get("a") is None and shares is None:
        return {"arms": list(names), "arm": names[drawn - 1], "propensity": label}
    if not ranked or len({*ranked}) != len(ranked) or not all(0 < each <= len(names) for each in ranked):
        remedy = f"give each action once, by its number from 1 to {len(names)}"
        raise InvalidInput(f"{event.get('a')!r:.40} cannot be used", field="a", remedy=remedy)
    given = cells.convert_value(cells.numbers, shares, field="p")
    if len(given) == 1 < len(names) and len(ranked) == 1:
        return {"arms": list(names), "arm": names[drawn - 1], "propensity": given[0]}
    total = math.fsum(given)
    if len(given) != len(ranked) or abs(total - 1.0) > _SLACK:
        reason = f"has {len(given)} numbers for {len(ranked)} actions, with the sum {total:.9g}"
        raise InvalidInput(reason, field="p", remedy="give one probability for each action of `a`, with the sum 1")
    by_number = dict(zip(ranked, given, strict=True))
    _check_label(label, share=by_number.get(drawn, 0.0), event=event)
    offered = sorted(by_number)
    pmf = [by_number[number] / total for number in offered]
    return {"arms": [names[number - 1] for number in offered], "pmf": pmf, "arm": names[drawn - 1]}


def _drawn_number(event: Event, *, count: int) -> int:
    """The number of the drawn action, from 1. Raises InvalidInput if there is none, or if two differ."""
    ranked = event.get("a")
    index = event.get("_labelIndex")
    given: dict[str, Any] = {
        "a": ranked[0] if isinstance(ranked, list) and ranked else None,
        "_label_Action": event.get("_label_Action"),
        "_labelIndex": index + 1 if type(index) is int else index,
    }
    given = {key: number for key, number in given.items() if number is not None}
    remedy = f"give the drawn action by its number from 1 to {count}, and first in `a`"
    for key, number in given.items():
        if type(number) is not int or not 0 < number <= count or number != next(iter(given.values())):
            raise InvalidInput(f"{number!r:.40} is not the drawn action", field=key, remedy=remedy)
    if not given:
        raise InvalidInput("the value is missing", field="a", remedy=remedy)
    return int(next(iter(given.values())))


def _check_label(label: Any, *, share: float, event: Event) -> None:
    """Raise InvalidInput if the label's probability is neither `share` nor `share` x (1 - pdrop)."""
    if label is None:
        return
    given = cells.convert_value(cells.cell_number, label, field="_label_probability")
    logged = share * (1.0 - float(event.get("pdrop") or 0.0))
    if min(abs(given - share), abs(given - logged)) > _SLACK * max(given, share):
        reason = f"is {given:.9g}, but `p` gives the drawn action {share:.9g}"
        raise InvalidInput(reason, field="_label_probability", remedy="log both from the same draw")


def _names(actions: Sequence[Event], *, places: _Places) -> list[str]:
    """The arms of actions: tags, ids or only texts; places for all actions if one lacks a name. Raises InvalidInput."""
    found = [_name(action) for action in actions]
    if any(name is None for name in found):
        places.check([canonical(action) for action in actions])
        return [f"action_{place}" for place in range(1, len(actions) + 1)]
    names = [_arm(str(name)) for name in found]
    [(repeated, count)] = Counter(names).most_common(1) or [("", 0)]
    if count > 1:
        message = f"two actions have the name {repeated!r:.80}"
        raise InvalidInput(message, field="c._multi", remedy="give every action a name of its own")
    return names


def _name(action: Event) -> str | None:
    leaves = dict(_leaves(action, hidden=False))
    ids = [value for path, value in leaves.items() if path.rpartition(".")[2].lower() in ("_tag", "id", "_id")]
    first = next((value for value in (action.get("_tag"), *ids) if isinstance(value, str | int) and value != ""), None)
    if first is None and len(leaves) == 1 and isinstance(value := next(iter(leaves.values())), str):
        first = value
    return None if first is None else str(first)


def _arm(name: str) -> str:
    """The name as an arm may have it: signs become _, and a long name keeps its beginning and gets a hash."""
    arm = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_") or "_"
    if len(arm) <= _LONGEST and arm != "_":
        return arm
    return f"{arm[: _LONGEST - 9]}-{sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"


def _leaves(value: Event, *, before: str = "", hidden: bool = True) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of each feature; a list of objects is one namespace. hidden: leave out names with _."""
    for key, part in value.items():
        if hidden and key.startswith("_"):
            continue
        path = f"{before}{key}"
        objects = part if isinstance(part, list) and all(isinstance(one, dict) for one in part) else [part]
        for one in objects:
            if isinstance(one, dict):
                yield from _leaves(one, before=f"{path}.", hidden=hidden)
            elif one is not None:
                yield path, one

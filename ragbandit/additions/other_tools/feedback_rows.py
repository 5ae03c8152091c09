"""Judgements in rows of other tools, as feedback: each is stored once, and what cannot be used is counted."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from ragbandit.additions.other_tools.forms import FORMS
from ragbandit.additions.other_tools.rating_words import amount_of, best_in_rating, level_of
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.sources import IMPORTED_RATER
from ragbandit.router.offline.logs.cells import convert_value, gold, is_empty, text as text_of
from ragbandit.router.offline.logs.records import Parse, cell, plain_name, records
from ragbandit.router.serving.checks.questions import RESPONSE_PREFIX, plain_decision_id
from ragbandit.router.serving.checks.reports import USUAL_SCALES, bounds_of, make_feedback
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import InvalidInput, NotFound, RagBanditError
from ragbandit.shared.texts.plain_values import is_missing
from ragbandit.shared.types import DecisionId, Feedback, Receipt, own_feedback_id

#: maximum number of unusable lines whose faults are printed; all unusable lines are counted
_MOST_FAULTS: Final = 20
#: name of a source in other tools, in `plain_name` -> our name
_SOURCES: Final = {name: source for source, names in FORMS["sources"].items() for name in names.split()}
#: other names of the decision's id, in `plain_name`
_ID_NAMES: Final = tuple(FORMS["ratings"]["ids"].split())


class FeedbackImporter:
    """Imports feedback from lines, and counts the results. fields: field of a judgement -> dotted path in a line."""

    def __init__(
        self, store: DecisionStore, *, settings: Settings, fields: Mapping[str, str], source: str | None, scale: str
    ) -> None:
        self._store, self._settings = store, settings
        self._fields, self._source, self._scale = fields, source, scale or "0-1"
        self._guesses = not scale
        path = fields["decision_id"]
        self._id_names = _ID_NAMES if path == "decision_id" else ()
        self.keys = (path, path.partition(".")[0], *self._id_names)  #: names of which every line has at least one
        self.read = self.bad = 0
        #: imported: new feedback; known: feedback stored before; late: new feedback on closed decisions
        self.counts = {"imported": 0, "known": 0, "late": 0}
        #: descriptions of the first unusable lines: number, field, message and remedy
        self.faults: list[str] = []

    def check(self, readable: Path, *, file: Path) -> None:
        """Read the whole file. Raises InvalidInput if a rating or reward is out of its bounds.

        Without a given scale, sets the scale -1-1 if all ratings are -1 or 1, and one is -1.
        """
        #: field -> (smallest, largest) number, each with its line
        extremes: dict[str, tuple[tuple[float, int], tuple[float, int]]] = {}
        bests: dict[float, int] = {}
        are_thumbs = self._guesses
        for number, parse in records(readable, keys=self.keys):
            with contextlib.suppress(InvalidInput):
                entry = parse()
                if (best := best_in_rating(_find_cell(entry, self._fields["rating"]))) is not None:
                    bests.setdefault(best, number)
                for name in ("rating", "reward"):
                    amount = amount_of(_find_cell(entry, self._fields[name]))
                    if amount is None or isinstance(amount, bool):
                        continue
                    are_thumbs &= name != "rating" or amount in (-1, 1)
                    found = (*extremes.get(name, ()), (amount, number))
                    extremes[name] = min(found), max(found)
        rewards, ratings = self._settings.reward, extremes.get("rating")
        if are_thumbs and ratings is not None and ratings[0][0] == -1:
            self._scale = "-1-1"
        bounds = {"rating": bounds_of(self._scale), "reward": (rewards.minimum, rewards.maximum)}
        if other := next((best for best in bests if best != max(bounds["rating"])), None):
            message = f"the rating is out of {other:g}, and --scale is {self._scale}"
            remedy = f"give --scale=1-{other:g} or --scale=0-{other:g}; nothing of the file was imported"
            raise InvalidInput(message, field=f"{file}:{bests[other]} {self._fields['rating']}", remedy=remedy)
        for name, ends in extremes.items():
            least, most = sorted(bounds[name])
            off = [(amount, line) for amount, line in ends if not least <= amount <= most]
            if not off:
                continue
            (low, _), (high, _) = ends
            remedy, of_scale = "set reward.minimum and reward.maximum, or convert the rewards", ""
            if name == "rating":
                scales = ((scale, bounds_of(scale)) for scale in USUAL_SCALES)
                fitting = next((scale for scale, (start, end) in scales if start <= low and high <= end), "WORST-BEST")
                remedy, of_scale = f"give --scale={fitting}", f", and --scale is {self._scale}"
            message = f"the number {off[0][0]:g} is off the scale: the file has {low:g} to {high:g}{of_scale}"
            field = f"{file}:{off[0][1]} {self._fields[name]}"
            raise InvalidInput(message, field=field, remedy=f"{remedy}; nothing of the file was imported")

    def store_lines(self, page: Sequence[tuple[int, Parse]]) -> None:
        self.read += len(page)
        now = time.time()
        items: list[tuple[int, Feedback]] = []
        faults: dict[int, RagBanditError] = {}
        for order, (number, parse) in enumerate(page):
            try:
                # Later lines get later times, since a rater's later judgement replaces the earlier one.
                items.append((number, self._make_feedback(parse(), now=now + 1e-6 * order)))
            except InvalidInput as error:
                faults[number] = error
        for (number, _), reply in zip(items, self._store_items([item for _, item in items]), strict=True):
            if isinstance(reply, RagBanditError):
                faults[number] = reply
            elif reply.duplicate:
                self.counts["known"] += 1
            else:
                self.counts["imported"] += 1
                self.counts["late"] += reply.late
        for number, fault in sorted(faults.items()):
            self._count_fault(number, fault)

    def _store_items(self, items: Sequence[Feedback]) -> Sequence[Receipt | RagBanditError]:
        """Store the items. Returns the reply to each.

        If an id begins with RESPONSE_PREFIX and no decision has it, the feedback is for the id without this prefix.
        """
        if not items:
            return []
        replies = self._store.add_feedback(items)
        unknown = [
            place
            for place, reply in enumerate(replies)
            if isinstance(reply, NotFound) and items[place].decision_id.startswith(RESPONSE_PREFIX)
        ]
        if not unknown:
            return replies
        plain = [DecisionId(items[place].decision_id.removeprefix(RESPONSE_PREFIX)) for place in unknown]
        others = self._store.add_feedback(
            [replace(items[place], decision_id=each) for place, each in zip(unknown, plain, strict=True)]
        )
        return [dict(zip(unknown, others, strict=True)).get(place, reply) for place, reply in enumerate(replies)]

    def _make_feedback(self, entry: Mapping[str, Any], *, now: float) -> Feedback:
        cells = {name: _find_cell(entry, path) for name, path in self._fields.items()}
        if is_missing(cells["decision_id"]):
            others = {plain_name(name): value for name, value in entry.items()}
            cells["decision_id"] = next((others[name] for name in self._id_names if name in others), None)
        sent: dict[str, Any] = {name: None if is_empty(cell) else cell for name, cell in cells.items()}
        for name in ("decision_id", "feedback_id", "rater"):
            sent[name] = None if sent[name] is None else convert_value(text_of, sent[name], field=name)
        if isinstance(sent["decision_id"], str):
            sent["decision_id"] = plain_decision_id(sent["decision_id"])
        if self._source is not None:
            sent["source"] = self._source
        elif isinstance(sent["source"], str):
            sent["source"] = _SOURCES.get(plain_name(sent["source"]), sent["source"])
        if isinstance(sent["rating"], str):
            level, (worst, best) = level_of(sent["rating"]), bounds_of(self._scale)
            words = sent["rating"] if level is None else worst + level * (best - worst)
            sent["rating"] = amount_of(words, otherwise=words)
        if isinstance(sent["rater"], str):
            sent["rater"] = f"{IMPORTED_RATER}{sent['rater'].strip()}"
        if sent["feedback_id"] is None:
            digest = sha256(canonical(sent).encode("utf-8", "surrogatepass")).hexdigest()[:40]
            sent["feedback_id"] = own_feedback_id("import", digest=digest)
        sent["label"] = convert_value(gold, sent["label"], field="label")
        return make_feedback(settings=self._settings, now=now, scale=self._scale, **sent)

    def _count_fault(self, number: int, error: RagBanditError) -> None:
        self.bad += 1
        if len(self.faults) < _MOST_FAULTS:
            path = self._fields.get(error.field or "", error.field)
            field, remedy = f" {path}:" if path else "", f" ({error.remedy})" if error.remedy else ""
            self.faults.append(f"{number}{field} {error.message}{remedy}")


def _find_cell(entry: Mapping[str, Any], path: str) -> Any:
    """Like `cell`, but also finds a field under other spellings, such as Decision ID."""
    value = cell(entry, path)
    return (
        value
        if value is not None
        else next((v for name, v in entry.items() if plain_name(name) == plain_name(path)), None)
    )

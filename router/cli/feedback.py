"""Verbs of `feedback`: quarantined decisions, excluded sources, and imports of judgements from a file."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ragbandit.router.cli.access import actor
from ragbandit.router.cli.console import errors
from ragbandit.router.cli.options import ConfigOption, JsonOption, LabelOption
from ragbandit.router.cli.progress import bars
from ragbandit.router.cli.store import open_store, parse_time
from ragbandit.router.cli.tables import show, show_list
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning import status as ledger_status
from ragbandit.router.learning.exclusions import checked_source, count_feedback, relearn
from ragbandit.router.learning.sources import IMPORTED_RATER, quarantines_of
from ragbandit.router.offline.logs.cells import convert_value, gold, is_empty, text as text_of
from ragbandit.router.offline.logs.records import Parse, plain_name, records
from ragbandit.router.offline.traffic.forms import FORMS
from ragbandit.router.offline.traffic.rating_words import amount_of, best_of, level_of
from ragbandit.router.queue.notifier import Notifier
from ragbandit.router.serving.checks.questions import RESPONSE_PREFIX, plain_decision_id
from ragbandit.router.serving.checks.reports import USUAL_SCALES, bounds_of, made_feedback
from ragbandit.router.serving.setup.bootstrap import make_jobs
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import InvalidInput, NotFound, RagBanditError
from ragbandit.shared.json_lines import rereadable
from ragbandit.shared.texts.plain_values import is_missing
from ragbandit.shared.types import DecisionId, Feedback, Receipt

#: lines that are stored in one transaction
_PAGE: Final = 500
#: maximum number of unusable lines whose faults are printed; all unusable lines are counted
_MOST_FAULTS: Final = 20
#: name of a source in other tools, in `plain_name` -> our name
_SOURCES: Final = {name: source for source, names in FORMS["sources"].items() for name in names.split()}
#: other names of the decision's id, in `plain_name`
_ID_NAMES: Final = tuple(FORMS["ratings"]["ids"].split())
SOURCE_HELP: Final = "key:PUBLIC_ID, tenant:NAME, role:NAME or rater:NAME"


def quarantined(
    limit: Annotated[int, typer.Option(min=1, help="most decisions to list, the newest first")] = 100,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the decisions that could not be learned, with the reason."""
    with open_store(config, label=label) as (_, ledger):
        rows = ledger_status.quarantined(ledger, limit=limit)
    show_list([dict(row) for row in rows], none="every decision could be learned", as_json=as_json)


def exclude(
    source: Annotated[str | None, typer.Option(help=f"{SOURCE_HELP}; default: list what is excluded")] = None,
    since: Annotated[str | None, typer.Option(help="only feedback since a date, a time, or an age (7d)")] = None,
    until: Annotated[str | None, typer.Option(help="only feedback before then; times are UTC")] = None,
    reason: Annotated[str, typer.Option(help="for the audit log")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print how much feedback would be excluded; change nothing")
    ] = False,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learn a ledger without the feedback of a source, or list all exclusions (no option).

    Services use the old ledger while the new one is learned. Afterwards set policy.label to the new ledger and restart
    the services, one after the other. To end the exclusion, set policy.label to the old ledger again.
    """
    if source is None:
        if since or until or dry_run:
            raise InvalidInput("name the source to exclude", field="source", remedy=SOURCE_HELP)
        with open_store(config) as (_, ledger):
            rows = quarantines_of(ledger.database)
        show_list([asdict(row) for row in rows], none="no source is excluded", as_json=as_json)
        return
    now = time.time()
    period = {
        name: None if text is None else parse_time(text, now=now, field=name)
        for name, text in (("since", since), ("until", until))
    }
    with open_store(config, label=label) as (settings, ledger), bars(errors) as progress:
        if dry_run:
            count = count_feedback(ledger, source=checked_source(source), **period)
            show({"source": source, "feedback": count, "label": ledger.label}, as_json=as_json)
            return
        done = relearn(
            ledger,
            settings=settings,
            source=source,
            reason=reason,
            actor=actor(),
            now=now,
            progress=lambda closed: progress("decisions", closed, 0),
            **period,
        )
    show(done, as_json=as_json)
    if not as_json:
        errors.say(f"services go on with {ledger.label}: set policy.label to {done['label']} and restart them in turn")


def import_(
    file: Annotated[Path, typer.Argument(help="JSON Lines, a JSON list, CSV or Parquet: one judgement a row")],
    *,
    id_field: Annotated[
        str, typer.Option(help="the decision's id; a dot reads a part: user.id, scores.0.id")
    ] = "decision_id",
    rating_field: Annotated[str, typer.Option(help="true, false, or a number on the scale")] = "rating",
    label_field: Annotated[str, typer.Option(help="a gold answer, or a list of them")] = "label",
    reward_field: Annotated[str, typer.Option(help="the final reward, with the cost already subtracted")] = "reward",
    event_field: Annotated[str, typer.Option(help="a name of the setting feedback_events")] = "event",
    source_field: Annotated[str, typer.Option(help="who judged: human, label, judge or code")] = "source",
    rater_field: Annotated[str, typer.Option(help="id of the rater: a person, or a judge")] = "rater",
    key_field: Annotated[str, typer.Option(help="the judgement's id (default: a hash of the line)")] = ("feedback_id"),
    source: Annotated[str | None, typer.Option(help="source of every line; replaces the lines' own")] = None,
    scale: Annotated[str, typer.Option(help="WORST-BEST of numbers; default 0-1, or -1-1 if all are -1 or 1")] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import feedback from a file of another tool or of your own logs.

    Each row judges one decision by a rating, label, reward or event. A file with a rating off the scale, or a reward
    out of its bounds, is refused before anything is stored. Unusable lines are counted and listed, the other lines are
    stored, and the exit code is then 1. A line that is imported twice is stored once. To correct a file, import it
    again: a later judgement of the same rater replaces the earlier one.
    """
    fields = {"decision_id": id_field, "rating": rating_field, "label": label_field, "reward": reward_field}
    fields |= {"event": event_field, "source": source_field, "rater": rater_field, "feedback_id": key_field}
    with rereadable(file) as readable, open_store(config, registered=False) as (settings, ledger):
        store = DecisionStore(
            ledger.database, label=ledger.label, text=settings.log.text, context=frozenset(settings.context)
        )
        importer = FeedbackImporter(store, settings=settings, fields=fields, source=source, scale=scale)
        importer.check(readable, file=file)
        try:
            with bars(errors) as progress:
                rows = records(readable, keys=importer.keys)
                for page in iter(lambda: list(islice(rows, _PAGE)), []):
                    importer.store_lines(page)
                    progress("lines", importer.read, 0)
        finally:
            if importer.counts["imported"]:
                Notifier(make_jobs(settings)).notify_learner()
    result = {**importer.counts, "bad": importer.bad}
    show(result | {"faults": importer.faults} if as_json else result, as_json=as_json)
    if not as_json:
        for fault in importer.faults:
            errors.say(f"{file}:{fault}")
        if importer.bad > len(importer.faults):
            errors.print(f"and {importer.bad - len(importer.faults)} more")
    if importer.bad:
        raise typer.Exit(1)


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
        self.keys = (path, path.partition(".")[0], *self._id_names)  #: see `records`
        self.read = self.bad = 0
        #: imported: new feedback; known: feedback stored before; late: new feedback on closed decisions
        self.counts = {"imported": 0, "known": 0, "late": 0}
        #: descriptions of the first unusable lines: number, field, message and remedy
        self.faults: list[str] = []

    def check(self, readable: Path, *, file: Path) -> None:
        """Read the whole file. Raises InvalidInput if a rating or reward is out of its bounds."""
        #: field -> (smallest, largest) number, each with its line
        extremes: dict[str, tuple[tuple[float, int], tuple[float, int]]] = {}
        bests: dict[float, int] = {}
        are_thumbs = self._guesses
        for number, parse in records(readable, keys=self.keys):
            with contextlib.suppress(InvalidInput):
                entry = parse()
                if (best := best_of(_cell_of(entry, self._fields["rating"]))) is not None:
                    bests.setdefault(best, number)
                for name in ("rating", "reward"):
                    amount = amount_of(_cell_of(entry, self._fields[name]))
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
                items.append((number, self._feedback(parse(), now=now + 1e-6 * order)))
            except InvalidInput as error:
                faults[number] = error
        for (number, _), reply in zip(items, self._replies([item for _, item in items]), strict=True):
            if isinstance(reply, RagBanditError):
                faults[number] = reply
            elif reply.duplicate:
                self.counts["known"] += 1
            else:
                self.counts["imported"] += 1
                self.counts["late"] += reply.late
        for number, fault in sorted(faults.items()):
            self._fault(number, fault)

    def _replies(self, items: Sequence[Feedback]) -> Sequence[Receipt | RagBanditError]:
        """Store the items; the reply to each.

        If no decision has an id that begins with the prefix of responses, the decision with the id after it counts.
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

    def _feedback(self, entry: Mapping[str, Any], *, now: float) -> Feedback:
        cells = {name: _cell_of(entry, path) for name, path in self._fields.items()}
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
            sent["feedback_id"] = f"import-{sha256(canonical(sent).encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"
        sent["label"] = convert_value(gold, sent["label"], field="label")
        return made_feedback(settings=self._settings, now=now, scale=self._scale, **sent)

    def _fault(self, number: int, error: RagBanditError) -> None:
        self.bad += 1
        if len(self.faults) < _MOST_FAULTS:
            path = self._fields.get(error.field or "", error.field)
            field, remedy = f" {path}:" if path else "", f" ({error.remedy})" if error.remedy else ""
            self.faults.append(f"{number}{field} {error.message}{remedy}")


def cell(entry: Mapping[str, Any], path: str) -> Any:
    """The value of a field: its name, or a dotted path into objects and lists, as user.id or scores.0.value.

    Names in the path may have dots themselves: attributes.gen_ai.evaluation.score.value.
    """
    return _at(entry, path.replace("[", ".").replace("]", "").split(".") if path not in entry else [path])


def _at(value: Any, parts: Sequence[str]) -> Any:
    """The value at a path, of which each name may be several parts joined by dots; the shortest names are preferred."""
    if not parts:
        return value
    if isinstance(value, list):
        is_index = parts[0].isdecimal() and int(parts[0]) < len(value)
        return _at(value[int(parts[0])], parts[1:]) if is_index else None
    if not isinstance(value, Mapping):
        return None
    ends = [end for end in range(1, len(parts) + 1) if ".".join(parts[:end]) in value]
    values = (_at(value[".".join(parts[:end])], parts[end:]) for end in ends)
    return next((found for found in values if found is not None), None)


def _cell_of(entry: Mapping[str, Any], path: str) -> Any:
    """Like `cell`, but a missing field is also searched under other spellings, such as Decision ID."""
    value = cell(entry, path)
    return (
        value
        if value is not None
        else next((v for name, v in entry.items() if plain_name(name) == plain_name(path)), None)
    )

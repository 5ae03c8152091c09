"""Verbs of `feedback`: sources that a ledger is learned without, judgements from a file."""

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from ragbandit.router.api.schemas.requests import plain_decision_id
from ragbandit.router.cli.access import actor
from ragbandit.router.cli.console import ConfigOption, JsonOption, LabelOption, bars, errors, show, show_list
from ragbandit.router.cli.store import opened, parse_time
from ragbandit.router.config.named_sections import value_at
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning import status as ledger_status
from ragbandit.router.learning.learner import checked_source, relearn, selected
from ragbandit.router.learning.sources import IMPORTED_RATER, SUPERSEDES, lifted, quarantines_of
from ragbandit.router.queue.notifier import Notifier
from ragbandit.router.serving.checks.reports import SCALES, made_feedback
from ragbandit.router.serving.setup.bootstrap import make_jobs
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.rows.conversion import canonical, feedback_row
from ragbandit.shared.errors import InvalidInput, RagBanditError
from ragbandit.shared.files import lines, parsed, rereadable
from ragbandit.shared.types import Feedback, FeedbackId

#: lines of a file that are kept in one transaction, and lines that cannot be used of which an import tells
_PAGE, _MOST_FAULTS = 500, 20
#: lines that a refusal names, and most characters of an id that can be superseded
_MOST_NAMED, _LONGEST_KEY = 5, 58
#: ratings that are words
_WORDS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("true", "yes", "up", "thumbs_up", "thumbsup", "like", "good", "positive", "\U0001f44d"), True),
    **dict.fromkeys(("false", "no", "down", "thumbs_down", "thumbsdown", "dislike", "bad", "negative"), False),
    "\U0001f44e": False,
}
SOURCE_HELP: Final = "key:PUBLIC_ID, tenant:NAME, role:NAME or rater:NAME"


def rejected(
    limit: Annotated[int, typer.Option(min=1, help="most decisions to list, the newest first")] = 100,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decisions that could not be learned, and why."""
    with opened(config, label=label) as (_, ledger):
        rows = ledger_status.quarantined(ledger, limit=limit)
    show_list([dict(row) for row in rows], none="every decision could be learned", as_json=as_json)


def exclude(
    source: Annotated[str | None, typer.Option(help=f"{SOURCE_HELP}; default: list what is excluded")] = None,
    since: Annotated[str | None, typer.Option(help="only feedback since a date, a time, or an age (7d)")] = None,
    until: Annotated[str | None, typer.Option(help="only feedback before then; times are UTC")] = None,
    reason: Annotated[str, typer.Option(help="for the audit log")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say how much it is, and change nothing")] = False,
    end: Annotated[int | None, typer.Option(help="number of an exclusion to end: the source is learned again")] = None,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learn a new ledger without the feedback of a source, or end an exclusion; without either list all exclusions.

    The ledger in use stays in service while the new one is learned. When it is done, set policy.label to it and
    restart the services, one after the other.
    """
    if end is not None:
        with opened(config) as (_, ledger):
            count = lifted(ledger, end, actor=actor(), now=time.time())
            show({"ended": end, "decisions": count}, as_json=as_json)
        return
    if source is None:
        if since or until or dry_run:
            message = "no source is given whose feedback is to be excluded"
            raise InvalidInput(message, field="source", remedy=SOURCE_HELP)
        with opened(config) as (_, ledger):
            rows = quarantines_of(ledger.database, lifted=True)
        show_list([asdict(row) for row in rows], none="no source is excluded", as_json=as_json)
        return
    now = time.time()
    period = {
        name: None if text is None else parse_time(text, now=now, field=name)
        for name, text in (("since", since), ("until", until))
    }
    with opened(config, label=label) as (settings, ledger), bars(errors) as progress:
        if dry_run:
            count = selected(ledger, source=checked_source(source), **period)
            show({"source": source, "feedback": count, "label": ledger.label}, as_json=as_json)
            return
        done = relearn(
            ledger,
            settings=settings,
            source=source,
            reason=reason,
            actor=actor(),
            now=now,
            progress=lambda closed: progress("decisions", closed, closed),
            **period,
        )
    show(done, as_json=as_json)
    if not as_json:
        errors.say(f"services go on with {ledger.label}: set policy.label to {done['label']} and restart them in turn")


def import_(
    file: Annotated[Path, typer.Argument(help="JSON Lines (.jsonl, .jsonl.gz): one judgement a line")],
    *,
    id_field: Annotated[str, typer.Option(help="field of the decision's id; user.id is id in user")] = "decision_id",
    rating_field: Annotated[str, typer.Option(help="true, false, or a number on the scale")] = "rating",
    label_field: Annotated[str, typer.Option(help="a gold answer, or a list of them")] = "label",
    reward_field: Annotated[str, typer.Option(help="the reward itself, cost included")] = "reward",
    event_field: Annotated[str, typer.Option(help="a name of the setting feedback_events")] = "event",
    source_field: Annotated[str, typer.Option(help="who judged: human, label, judge or code")] = "source",
    rater_field: Annotated[str, typer.Option(help="which one of the source judged, an id")] = "rater",
    key_field: Annotated[str, typer.Option(help="the judgement's id (default: a hash of the line)")] = ("feedback_id"),
    source: Annotated[str | None, typer.Option(help="who judged all of it, whatever the lines say")] = None,
    scale: Annotated[str, typer.Option(help="scale of ratings that are numbers: 0-1 or 1-5")] = "0-1",
    supersede: Annotated[bool, typer.Option("--replace", help="supersede earlier imports on these decisions")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import feedback from a file of JSON Lines: of another tool's export, or of your own logs.

    Each line judges one decision by a rating, label, reward or event. A file with a rating off the scale, or a reward
    out of its bounds, is refused before anything is stored. Lines that cannot be used are counted and listed, the rest
    is stored, and the command then ends with 1. Importing a line twice stores it once: import the corrected file again,
    with --replace if earlier judgements were wrong.
    """
    fields = {"decision_id": id_field, "rating": rating_field, "label": label_field, "reward": reward_field}
    fields |= {"event": event_field, "source": source_field, "rater": rater_field, "feedback_id": key_field}
    with rereadable(file) as readable, opened(config, registered=False) as (settings, ledger):
        store = DecisionStore(
            ledger.database, label=ledger.label, text=settings.log.text, context=frozenset(settings.context)
        )
        taken = _Import(store, settings=settings, fields=fields, source=source, scale=scale)
        said = taken.checked(readable, file=file)
        taken.said = said if supersede else None
        try:
            with bars(errors) as progress:
                rows = lines(readable)
                while page := list(islice(rows, _PAGE)):
                    taken.take(page)
                    progress("lines", taken.read, 0)
        finally:
            if taken.counts["imported"]:
                Notifier(make_jobs(settings)).notify_learner()
    facts = {**taken.counts, "bad": taken.bad}
    show(facts | {"faults": taken.faults} if as_json else facts, as_json=as_json)
    if not as_json:
        for fault in taken.faults:
            errors.say(f"{file}:{fault}")
        if taken.bad > len(taken.faults):
            errors.print(f"and {taken.bad - len(taken.faults)} more")
    if taken.bad:
        raise typer.Exit(1)


class _Import:
    """What became of the lines so far."""

    def __init__(
        self, store: DecisionStore, *, settings: Settings, fields: Mapping[str, str], source: str | None, scale: str
    ) -> None:
        """fields: of a judgement -> where a line says it: names, with dots into objects."""
        self._store, self._settings, self._fields = store, settings, fields
        self._source, self._scale = source, scale
        self.read = self.bad = 0
        #: new feedback, feedback that was there, and of the new what came after its decision was closed
        self.counts = {"imported": 0, "known": 0, "late": 0}
        #: the first lines that cannot be used, each with its number, field and remedy
        self.faults: list[str] = []
        #: ids of the file's feedback, if it supersedes what earlier imports said; None if it adds to it
        self.said: set[str] | None = None

    def checked(self, readable: Path, *, file: Path) -> set[str]:
        """The ids of the file's feedback. Raises InvalidInput for a file with numbers off the scale."""
        if self._scale not in SCALES:
            remedy = f"use {' or '.join(SCALES)}"
            raise InvalidInput(f"unknown scale {self._scale!r}", field="scale", remedy=remedy)
        rewards = self._settings.reward
        bounds = {"rating": SCALES[self._scale], "reward": (rewards.minimum, rewards.maximum)}
        ids, off, seen = set[str](), list[tuple[int, str]](), dict[str, list[float]]()
        for number, raw in lines(readable):
            with contextlib.suppress(InvalidInput):
                entry = parsed(raw)
                for name, (low, high) in bounds.items():
                    amount = _amount(value_at(entry, self._fields[name].split(".")))
                    if amount is None or isinstance(amount, bool):
                        continue
                    known = [*seen.get(name, ()), amount]
                    seen[name] = [min(known), max(known)]
                    off += [] if low <= amount <= high else [(number, name)]
                ids.add(self._feedback(entry, now=0.0).id)
        if off:
            self._refuse(off, amounts=seen, file=file)
        return ids

    def _refuse(
        self, off: Sequence[tuple[int, str]], *, amounts: Mapping[str, Sequence[float]], file: Path
    ) -> NoReturn:
        name = off[0][1]
        low, high = amounts[name]
        named = ", ".join(str(number) for number, _ in off[:_MOST_NAMED]) + (", ..." if off[_MOST_NAMED:] else "")
        remedy = "set reward.minimum and reward.maximum, or convert the rewards"
        if name == "rating":
            fitting = next((scale for scale, (least, most) in SCALES.items() if least <= low and high <= most), None)
            remedy = f"give --scale {fitting}" if fitting else f"convert them to one of the scales {', '.join(SCALES)}"
        message = (
            f"{len(off)} numbers are off the scale (line {named}): the file has {low:g} to {high:g}"
            + f" and --scale is {self._scale}" * (name == "rating")
        )
        field = f"{file} {self._fields[name]}"
        raise InvalidInput(message, field=field, remedy=f"{remedy}; nothing of the file was imported")

    def take(self, page: Sequence[tuple[int, bytes]]) -> None:
        """Store the feedback of these lines in one transaction. Raises StoreError."""
        self.read += len(page)
        now, good, faults = time.time(), [], dict[int, RagBanditError]()
        for order, (number, raw) in enumerate(page):
            try:
                # In the order of the lines, which decides whose vote stands.
                good.append((number, self._feedback(parsed(raw), now=now + 1e-6 * order)))
            except InvalidInput as error:
                faults[number] = error
        if self.said is not None:
            good = self._superseding(good, said=self.said)
        replies = self._store.add_feedback([each for _, each in good]) if good else []
        for (number, _), reply in zip(good, replies, strict=True):
            if isinstance(reply, RagBanditError):
                faults[number] = reply
            elif reply.duplicate:
                self.counts["known"] += 1
            else:
                self.counts["imported"] += 1
                self.counts["late"] += reply.late
        for number, fault in sorted(faults.items()):
            self._fault(number, fault)

    def _superseding(
        self, good: Sequence[tuple[int, Feedback]], *, said: Collection[str]
    ) -> list[tuple[int, Feedback]]:
        """These, under ids that supersede what is stored otherwise, and retractions of what the file does not say."""
        chains: dict[str, list[Feedback]] = {}
        for each in self._store.imported_feedback([item for _, item in good]):
            chains.setdefault(each.id.partition(SUPERSEDES)[0], []).append(each)
        superseding = []
        for number, item in good:
            chain = chains.pop(item.id, [])
            same = bool(chain) and feedback_row(chain[-1])["body_hash"] == feedback_row(item)["body_hash"]
            superseding.append((number, replace(item, id=chain[-1].id if same else _next_id(item.id, chain))))
        for key, chain in chains.items():
            if key not in said and chain[-1].value is not None:
                now = superseding[-1][1].received_at
                taken_back = replace(chain[-1], id=_next_id(key, chain), value=None, received_at=now)
                superseding.append((superseding[-1][0], taken_back))
        return superseding

    def _feedback(self, entry: Mapping[str, Any], *, now: float) -> Feedback:
        """The feedback of a line. Raises InvalidInput."""
        sent = {name: value_at(entry, path.split(".")) for name, path in self._fields.items()}
        if isinstance(sent["decision_id"], str):
            sent["decision_id"] = plain_decision_id(sent["decision_id"])
        if self._source is not None:
            sent["source"] = self._source
        if isinstance(sent["rating"], str):
            sent["rating"] = _amount(sent["rating"], otherwise=sent["rating"])
        if isinstance(sent["rater"], str):
            sent["rater"] = f"{IMPORTED_RATER}{sent['rater']}"
        if sent["feedback_id"] is None:
            text = canonical(sent).encode("utf-8", "surrogatepass")
            sent["feedback_id"] = f"import-{sha256(text).hexdigest()[:40]}"
        return made_feedback(settings=self._settings, now=now, scale=self._scale, **sent)

    def _fault(self, number: int, error: RagBanditError) -> None:
        self.bad += 1
        if len(self.faults) < _MOST_FAULTS:
            named = self._fields.get(error.field or "", error.field)
            field, remedy = f" {named}:" if named else "", f" ({error.remedy})" if error.remedy else ""
            self.faults.append(f"{number}{field} {error.message}{remedy}")


def _next_id(key: str, chain: Sequence[Feedback]) -> FeedbackId:
    """The id of feedback that supersedes a chain of others; the key itself if there are none."""
    return FeedbackId(f"{key}{SUPERSEDES}{len(chain)}" if chain and len(key) <= _LONGEST_KEY else key)


def _amount(value: object, *, otherwise: object = None) -> Any:
    """The number, or the true or false, that a rating says, also as text, thumbs or stars; else `otherwise`."""
    if not isinstance(value, str):
        return value if isinstance(value, int | float) and value == value else otherwise
    words = value.strip().lower().replace("\ufe0f", "").replace(" ", "_").replace("-", "_")
    if words in _WORDS:
        return _WORDS[words]
    if words and set(words) <= {*"\u2605\u2606\u2b50"}:
        return len(words) - words.count("\u2606")
    try:
        return float(value)
    except ValueError:
        return otherwise

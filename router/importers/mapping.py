"""Mapping: a judgement of another system as feedback of ours, by the settings; what is not mapped is not guessed."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

from ragbandit.router.config.importers import ImporterSettings, ScoreMapping
from ragbandit.router.config.settings import Settings
from ragbandit.router.importers.source import Judgement
from ragbandit.router.learning.sources.origin import IMPORTED_RATER
from ragbandit.router.serving.checks.reports import MAX_RATER, made_feedback
from ragbandit.router.storage.imported_feedback import IMPORTED_FACTS, Imported
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Feedback, FeedbackSource


def importer_raters(importer: str) -> str:
    """What the raters of one importer begin with; `learning.sources` weighs raters by it."""
    return f"{IMPORTED_RATER}{importer}:"


def is_mapped(judgement: Judgement, *, settings: ImporterSettings) -> bool:
    """Whether the settings say what judgements of this name are."""
    return judgement.name in settings.known_names


def feedback_of(
    judgement: Judgement, *, decision_id: str, importer: str, place: str, settings: Settings, now: float
) -> Feedback:
    """The feedback of a judgement whose name is mapped. Raises InvalidInput with what is wrong with it.

    Its id follows from what it is and says, not from the decision: the same judgement read again is a duplicate, and
    cannot judge two decisions; an edited one is another feedback of the same rater, which replaces the first.

    place: which installation of the other system.
    """
    section: ImporterSettings = getattr(settings.importers, importer)
    chosen = section.known_names[judgement.name]
    given = _value(judgement, chosen)
    source = None if chosen.kind == "event" else _source(judgement, chosen, importer=importer)
    rater = _rater(judgement, source=source, importer=importer, place=place)
    content = [importer, place, judgement.id, judgement.version, given, source, rater]
    item = made_feedback(
        decision_id=decision_id,
        settings=settings,
        now=now,
        feedback_id=_id_of(content),
        source=source,
        rater=rater,
        **given,
    )
    return _noted(item, {"from": place, "id": judgement.id, "name": judgement.name, "of": _subject(judgement)})


def retraction_of(item: Imported, *, settings: Settings, now: float) -> Feedback:
    """The feedback that takes back what was imported, since it was deleted there. Its id follows from that one's."""
    retraction = made_feedback(
        decision_id=item.decision_id,
        settings=settings,
        now=now,
        feedback_id=_id_of([item.feedback_id, "retracted"]),
        retract=item.kind,
        source=item.source,
        rater=item.rater,
    )
    return _noted(retraction, item.facts)


def _id_of(content: object) -> str:
    return f"import-{sha256(canonical(content).encode('utf-8', 'replace')).hexdigest()[:40]}"


def _noted(item: Feedback, facts: Mapping[str, str]) -> Feedback:
    return replace(item, facts={IMPORTED_FACTS: dict(facts)})


def _subject(judgement: Judgement) -> str:
    return judgement.links[0][1] if judgement.links else ""


def _value(judgement: Judgement, chosen: ScoreMapping) -> dict[str, Any]:
    """The argument of made_feedback that says what was judged."""
    value = judgement.value
    if chosen.kind == "event":
        return {"event": chosen.event}
    if chosen.kind == "label":
        if not isinstance(value, str):
            raise _refused(judgement, "has no text, which a label needs")
        return {"label": [value]}
    if isinstance(value, bool):
        return {"rating": float(value)}
    if isinstance(value, str) and value in chosen.categories:
        return {"rating": chosen.categories[value]}
    try:
        score = float(value)
    except ValueError as error:
        raise _refused(judgement, "has no number, and no category that is mapped") from error
    if not chosen.minimum <= score <= chosen.maximum:
        raise _refused(judgement, f"is outside [{chosen.minimum:g}, {chosen.maximum:g}]")
    return {"rating": (score - chosen.minimum) / (chosen.maximum - chosen.minimum)}


def _source(judgement: Judgement, chosen: ScoreMapping, *, importer: str) -> FeedbackSource:
    """Who judged. What the other system says cannot be overruled: a model's score stays a model's."""
    source = judgement.made_by or chosen.source
    if source is None:
        raise InvalidInput(
            f'a score "{judgement.name}" came by the API, which does not say who judged',
            field=f"importers.{importer}.names.{judgement.name}.source",
            remedy="set it to human if your users gave it, to code if a check of yours did",
        )
    return source


def _refused(judgement: Judgement, why: str) -> InvalidInput:
    return InvalidInput(
        f'a value of "{judgement.name}" {why}', field=judgement.name, remedy="set minimum, maximum or categories of it"
    )


def _rater(judgement: Judgement, *, source: FeedbackSource | None, importer: str, place: str) -> str:
    """The rater: a person by the id there; a model or a check by the score's name; who is not told, by the score."""
    named = judgement.name if source in ("judge", "code") else judgement.author
    start = importer_raters(importer)
    if named is not None and len(start + named) <= MAX_RATER and named.strip():
        return start + named
    text = named or f"{place} {judgement.id}"
    return f"{start}#{sha256(text.encode('utf-8', 'replace')).hexdigest()[:32]}"

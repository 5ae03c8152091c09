import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Final, get_args

from fastapi import Query as QueryParameter, Request
from starlette.responses import Response

from ragbandit.additions.dashboard.rendering import form_fields, page, redirect_to
from ragbandit.additions.dashboard.search import LOOKED_AT, PageEnd, Search, newest_turns, search
from ragbandit.router.api.dependencies import caller_of, reads_of, router_of
from ragbandit.router.api.endpoints import decisions, feedback, labels, records
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.schemas.requests import FeedbackBody, body_of
from ragbandit.router.api.security.ownership import check_owner
from ragbandit.router.api.security.rules import LABEL, PERSON, READ, AccessRule, roles
from ragbandit.router.comparison.plots import ArmSigns
from ragbandit.router.serving.checks.questions import checked_id
from ragbandit.router.serving.checks.reports import MAX_RATER
from ragbandit.router.serving.explanations.chances import turn_words
from ragbandit.router.serving.explanations.explain import Explanation, amounts_in_words
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.decisions.turns import own_events
from ragbandit.router.storage.label_queue import LabelCounts, count_items
from ragbandit.router.storage.rows.outcome_rows import trace_json
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.formats import seconds_of, worth
from ragbandit.shared.types import DecisionState, request_json

PAGE: Final = 50
MOST_STEPS: Final = 300
#: maximum number of turns of a task that its page lists, the newest ones
MOST_TURNS: Final = 200
#: number of the newest turns that the page does not fold
OPEN_TURNS: Final = 5
_STATES: Final[tuple[DecisionState, ...]] = get_args(DecisionState)
_FIELDS: Final = ("id", "session", "arm", "state", "since", "until")

pages = Endpoints()


@pages.get("/ui/decisions", rule=READ)
async def list_decisions(request: Request) -> Response:
    """The page with the results of a search. If the form has an id, redirects to the page of that decision."""
    form = {name: request.query_params.get(name, "").strip()[:200] for name in _FIELDS}
    router, named = router_of(request), form["id"]
    if named:
        await check_owner(request, named, field="id")
        await reads_of(request).run(lambda: router.decision(named))
        return redirect_to(f"/ui/decisions/{named}")
    query = _search(request, form)
    after = _page_end(request.query_params.get("after"))
    results = await reads_of(request).run(lambda: search(router.database, query, after=after, limit=PAGE))
    values: dict[str, Any] = {
        "given": form,
        "results": results,
        "after": after,
        "next": None if results.next is None else "{!r},{}".format(*results.next),
        "sign": ArmSigns(router.service.arms),
        "arms": router.service.arms,
        "states": _STATES,
        "looked_at": LOOKED_AT if form["arm"] or form["state"] or query.tenant else None,
    }
    return page(request, "decisions.html", title="Decisions", **values)


@pages.get("/ui/decisions/{decision_id}", rule=READ)
async def show_decision(decision_id: str, request: Request) -> Response:
    router, explained = router_of(request), await records.explain_decision(request, decision_id)
    values = _facts(explained) | {"sign": ArmSigns(router.service.arms), "weight": router.settings.reward.weight}
    reward = explained.record.reward
    charged = reward.terms if reward is not None and reward.terms else router.settings.reward.cost
    values["is_dollars"] = dict(charged) == {"dollars": 1.0}
    values["request_facts"] = request_json(explained.record.decision.query)
    values["may_rate"] = caller_of(request).role != "reader"
    turns = await reads_of(request).run(partial(newest_turns, router.database, decision_id, limit=MOST_TURNS + 1))
    key = explained.record.decision.query.api_key
    values["key_name"] = key and await reads_of(request).run(lambda: KeyStore(router.database).names().get(key))
    values |= {"turns": turns[:MOST_TURNS], "open_turns": OPEN_TURNS, "more_turns": len(turns) > MOST_TURNS}
    return page(request, "decision.html", title="Decision", **values)


@pages.post("/ui/decisions/{decision_id}/cancel", rule=AccessRule(roles("operator")))
async def cancel_answer(decision_id: str, request: Request) -> Response:
    await form_fields(request)
    await decisions.cancel(decision_id, request)
    return redirect_to(f"/ui/decisions/{decision_id}")


@pages.post("/ui/decisions/{decision_id}/rating", rule=LABEL)
async def rate_decision(decision_id: str, request: Request) -> Response:
    fields: dict[str, Any] = {"rating": _right(await form_fields(request, "rating")), "source": "human"}
    rater = caller_of(request).name[:MAX_RATER] or None
    await feedback.feedback(FeedbackBody.model_construct(decision_id=decision_id, rater=rater, **fields), request)
    return redirect_to(f"/ui/decisions/{decision_id}")


def _right(form: Mapping[str, str]) -> bool:
    if form["rating"] not in ("true", "false"):
        raise InvalidInput(f"{form['rating']!r:.80} is not a rating", field="rating", remedy="send true or false")
    return form["rating"] == "true"


Skip = Annotated[int, QueryParameter(ge=0, lt=1_000_000)]


async def label_counts(request: Request) -> LabelCounts:
    """Counts of the answers that the caller may label."""
    database, tenant = router_of(request).database, caller_of(request).tenant

    def count() -> LabelCounts:
        with database.read() as connection:
            return count_items(connection, tenant=tenant, now=time.time())

    return await reads_of(request).run(count)


@pages.get("/ui/labels", rule=PERSON)
async def label_page(request: Request, skip: Skip = 0) -> Response:
    """The next answer to label. skip: number of answers to skip."""
    router, caller = router_of(request), caller_of(request)
    values: dict[str, Any] = {
        "counts": await label_counts(request),
        "item": next(iter(await labels.read_items(request, limit=1, skip=skip)), None),
        "skip": skip,
        "per_day": router.settings.learning.labels_per_day,
        "may_label": caller.role != "reader",
    }
    return page(request, "labels.html", title="Labels", **values)


@pages.post("/ui/labels", rule=LABEL)
async def label(request: Request, skip: Skip = 0) -> Response:
    form = await form_fields(request, "item", "rating")
    if form["rating"]:
        await labels.store_label(request, body_of(labels.LabelBody, {"item": form["item"], "right": _right(form)}))
    else:
        skip += 1
    return redirect_to(f"/ui/labels{f'?skip={skip}' if skip else ''}")


def _search(request: Request, form: Mapping[str, str]) -> Search:
    state = form["state"] or None
    if state is not None and state not in _STATES:
        raise InvalidInput(f"{state!r:.80} is not a state", field="state", remedy=f"use one of {', '.join(_STATES)}")
    return Search(
        label=router_of(request).ledger.label,
        tenant=caller_of(request).tenant,
        session=form["session"] or None,
        arm=form["arm"] or None,
        state=state,
        since=_seconds(form["since"], field="since"),
        until=_seconds(form["until"], field="until"),
    )


def _seconds(text: str, *, field: str) -> float | None:
    if not text:
        return None
    try:
        return seconds_of(text)
    except ValueError as error:
        remedy = "write it as 2026-11-20T14:00, in UTC"
        raise InvalidInput(f"{text!r:.80} is not a time", field=field, remedy=remedy) from error


def _page_end(text: str | None) -> PageEnd | None:
    if not text:
        return None
    made_at, _, named = text.partition(",")
    try:
        return float(made_at), checked_id(named, field="after")
    except ValueError as error:
        raise InvalidInput("this link is not valid", field="after", remedy="begin the search again") from error


#: `judged_by`, or the source of feedback, in words
_JUDGES: Final = {
    "human": "a person",
    "user": "a user",
    "judge": "the judge's model",
    "event": "an event of the product",
    "label": "a label",
}


def _quality_words(explained: Explanation) -> str:
    """The measure of the quality and its judges in words, such as "a rating by code"."""
    reward, feedback = explained.record.reward, explained.record.feedback
    assert reward is not None
    measure = "a rating" if reward.preset == "rating" else reward.preset.replace("_", " ")
    learned = [one.source for one in feedback if one.id not in explained.record.late]
    judges = dict.fromkeys(learned or filter(None, [reward.judged_by]))
    return " by ".join(filter(None, (measure, " and ".join(_JUDGES.get(judge, judge) for judge in judges))))


def _facts(explained: Explanation) -> dict[str, Any]:
    outcome, reward = explained.record.outcome, explained.record.reward
    steps: Any = () if outcome is None else trace_json(own_events(outcome.trace))
    columns = ("score", "quality", "cost")
    return {
        "explained": explained,
        "turn": turn_words(explained.record.decision),
        "rows": sorted(explained.arms, key=lambda arm: (-arm.probability, arm.arm)),
        "has": {name: any(getattr(arm, name) is not None for arm in explained.arms) for name in columns},
        "cost": {} if outcome is None else amounts_in_words(asdict(outcome.cost)),
        "right_answer": "" if reward is None or not reward.weight else worth(1.0 / reward.weight, "dollars"),
        "quality_words": "" if reward is None else _quality_words(explained),
        "terms": amounts_in_words(reward.terms) if reward is not None and reward.terms else {},
        "steps": steps[:MOST_STEPS],
        "titles": {} if outcome is None else {source.id: source.title for source in outcome.sources},
        "left_out": max(0, len(steps) - MOST_STEPS),
    }

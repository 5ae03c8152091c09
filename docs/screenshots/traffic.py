"""Made-up traffic of a week: questions of three kinds, three arms, people who judge, and candidate policies.

The store is real, and everything goes through the router and the learner, with a clock that is set. Questions, answers
and judgements are made up.
"""

import random
import time
from dataclasses import replace
from typing import Any, Final

from docs.screenshots.rollouts import Learners, Rollout
from ragbandit.router.config.settings import Settings
from ragbandit.router.serving.checks.reports import make_feedback, make_outcome
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.totals import TotalsExtender
from ragbandit.shared.types import Cost, Decision, Generated, Query, Retrieved, Round, Source, TraceEvent

#: name -> (steps, seconds, chance to be right by kind of question)
ARMS: Final[dict[str, tuple[int, float, tuple[float, ...]]]] = {
    "no_retrieval": (0, 0.4, (0.85, 0.25, 0.1)),
    "single_step": (1, 1.3, (0.87, 0.82, 0.3)),
    "multi_step": (3, 4.6, (0.88, 0.84, 0.8)),
}
_HOUR: Final = 3600.0
_KINDS: Final = (
    ("What does {} stand for?", "Spell out the abbreviation for {}.", "Who signs the forms for {}?"),
    ("How many days does {} take?", "Where is the form for {} kept?", "What is the limit for {}?", "Who pays for {}?"),
    (
        "Does the rule on {} still hold for those who moved between offices last year, and who decides it?",
        "What do the handbook and the contract say about {}, and which of them goes first?",
        "Who may approve {} abroad when the manager is away, and up to what amount?",
    ),
)
_THINGS: Final = (
    *("travel", "parental leave", "hardware", "remote work", "training", "sick leave", "expenses", "visas", "parking"),
    *("overtime", "pensions", "health insurance", "company cars", "phones", "relocation", "conferences", "lunches"),
    *("part-time work", "public holidays", "home offices", "language courses", "bicycles", "moving days", "books"),
)


def settings_of(folder: str) -> Settings:
    """Settings of a service that needs no model and no other server."""
    return Settings.model_validate(
        {
            "data_dir": folder,
            "encoder": {"model": "hashing", "dimension": 64},
            "arms": {name: {"run_by": "caller"} for name in ARMS},
            "reward": {"weight": 0.08},
            "policy": {"holdback": {"arm": "multi_step", "share": 0.1}},
            "rollout": {"time_limit_s": 5.0},
            "server": {"port": 0},
        }
    )


def fill(router: Router, *, hours: int = 156, each: int = 60, seed: int = 7) -> None:
    """Make the traffic of `hours` hours, with `each` questions in each hour; the last hour ends now."""
    drawn, now = random.Random(seed), time.time()  # noqa: S311 - traffic, no secret
    learners, rollout = Learners(router), Rollout(router)
    try:
        for hour in range(hours):
            begin = now - (hours - hour) * _HOUR
            rollout.go_on(hour / hours, now=begin)
            for number in range(each):
                _one(router, drawn, at=begin + (number + drawn.random()) * _HOUR / each, share=hour / hours)
            learners.learn(now=begin + _HOUR)
        rollout.go_on(1.0, now=now)
    finally:
        router.service.clock = time.time
        router.process.versions.snapshots.lags.clear()  # lags by the clock that was set
    extender = TotalsExtender(router.database, holder="screenshots", weight=0.05)
    while extender.extend(seconds=60.0):
        pass
    extender.release()


def _one(router: Router, drawn: random.Random, *, at: float, share: float) -> None:
    """Ask a question, report its answer, and judge most answers."""
    kind = drawn.randrange(3)
    thing = drawn.choice(_THINGS)
    text = drawn.choice(_KINDS[kind]).format(thing)
    session = f"chat-{drawn.randrange(400)}" if drawn.random() < 0.3 else None
    router.service.clock = lambda: at
    decision = router.route(Query(text=text, session=session))
    steps, seconds, chances = ARMS[decision.arm]
    right = drawn.random() < chances[kind]
    failed = drawn.random() < (0.06 if decision.arm == "multi_step" else 0.01)
    took = seconds * drawn.lognormvariate(0.0, 0.35)
    _answer(router, decision, thing=thing, steps=steps, took=took, failed=failed, now=at + took)
    if drawn.random() < 0.75:
        said: dict[str, Any] = {"rating": right and not failed, "rater": f"user-{drawn.randrange(25)}"}
        if drawn.random() < 0.2:
            said = {"rating": 0.9 if right else 0.2, "source": "judge", "rater": "judge-small"}
        given = make_feedback(decision_id=decision.id, settings=router.settings, now=at + took + 40 * share, **said)
        router.submit_feedback(given).result(10)


def _answer(
    router: Router, decision: Decision, *, thing: str, steps: int, took: float, failed: bool, now: float
) -> None:
    outcome = make_outcome(
        decision_id=decision.id,
        now=now,
        status="failed" if failed else "answered",
        answer=None if failed else f"The handbook says so of {thing}: see its page, section {1 + len(thing) % 7}.",
        steps=float(steps),
        cost={"seconds_total": took},
        error="the search did not reply within 10 s" if failed else None,
    )
    sources = tuple(
        Source(id=f"handbook/{thing}#{number}", title=f"Handbook: {thing} ({number + 1})", text=f"Of {thing}. " * 8)
        for number in range(2 * steps)
    )
    router.submit_outcome(
        replace(
            outcome,
            trace=_trace(thing, steps=steps, took=took),
            cost=Cost(
                retriever_calls=steps,
                passages=2 * steps,
                llm_calls=1 + steps,
                prompt_tokens=120 + 600 * steps,
                completion_tokens=40 + 25 * steps,
                seconds_total=took,
                dollars=0.0002 + 0.0011 * steps,
            ),
            sources=() if failed else sources,
        )
    ).result(10)


def _trace(thing: str, *, steps: int, took: float) -> tuple[TraceEvent, ...]:
    found: list[TraceEvent] = []
    for number in range(steps):
        ids = tuple(f"handbook/{thing}#{2 * number + place}" for place in (0, 1))
        last = number == steps - 1
        said = f"The handbook says so of {thing}." if last else f"It is not said yet who decides on {thing}."
        found.append(Round(number=number + 1))
        found.append(
            Retrieved(
                query=(f"rule on {thing}", f"who decides on {thing}", f"exceptions to {thing}")[number % 3],
                ids=ids,
                scores=(9.2 - number, 7.5 - number),
                seconds=took / 9,
            )
        )
        found.append(
            Generated(purpose="answer", text=said, prompt_tokens=600, completion_tokens=25, seconds=took / (steps + 1))
        )
    return tuple(found)

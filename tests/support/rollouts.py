"""Versions of the policy and what moves them; a store with one on its way, its rows written as the service does."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
from sqlalchemy import insert

from ragbandit.router.config.sections import RolloutSettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.policies.draw import choose
from ragbandit.router.rollouts import verbs
from ragbandit.router.rollouts.evaluator import Evaluator
from ragbandit.router.serving.checks.reports import made_outcome
from ragbandit.router.storage import policy_versions as store
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.sql.tables import updates
from ragbandit.shared.types import CandidateNotes, PolicyLabel

BASE = PolicyLabel("main")
#: seconds between two decisions
PACE_S = 10.0
NOW = itertools.count(2.0)


def add(database, name=None, *, base=BASE, now=1.0, **changes):
    """A draft with these changes."""
    return verbs.add(database, base=base, name=name, changes=changes, actor="cli:ann@host", reason="tried", now=now)


def do(database, verb, name="v1", *, settings=None, **more):
    """Carry out an action, later than all before it."""
    told: dict[str, Any] = {"actor": "cli:ann@host", "reason": "because", "now": next(NOW)} | more
    act = verbs.Act(verb=verb, name=name, base=BASE, **told)
    return verbs.perform(database, act, settings=settings or RolloutSettings())


def canary(world, *, weight=0.5, name=None, **changes):
    """The name of a new version in canary, which the world's router serves."""
    made = add(world.database, name, **changes).name
    do(world.database, "shadow", made)
    do(world.database, "canary", made, weight=weight)
    world.router.refresh()
    return made


class Trial:
    """A clock, one candidate, and its traffic. The candidate prefers single_step, the champion no_retrieval."""

    def __init__(self, database, *, make_decision, now=1_700_000_000.0, **rollout):
        self.settings = Settings.model_validate({"rollout": rollout})
        self.database, self.make_decision, self.now = database, make_decision, now
        self.decisions = DecisionStore(database, label=BASE)
        self.rng, self.seq, self.made = np.random.default_rng(7), 0, 0
        self.evaluator = Evaluator(database, settings=self.settings)
        add(database, now=now)
        self.do("shadow")

    def do(self, verb, **more):
        self.now += 1.0
        return do(self.database, verb, now=self.now, settings=self.settings.rollout, **more)

    @property
    def version(self):
        with self.database.read() as connection:
            return store.version_named(connection, "v1", base=BASE)

    @property
    def verdicts(self):
        with self.database.read() as connection:
            return store.verdicts_of(connection, "v1")

    def look(self, *, afresh=False):
        """Judge all versions once, after all rows have settled. afresh: by a new evaluator."""
        self.now += 6.0
        if afresh:
            self.evaluator.close()
            self.evaluator = Evaluator(self.database, settings=self.settings)
        return self.evaluator.evaluate(now=self.now)

    def live(self, count, *, gap=0.0, label=True):
        """Decisions as the version's state has them, with outcomes, and rows of the candidate's ledger."""
        made = [self._decision() for _ in range(count)]
        self.decisions.add_decisions(made)
        self.decisions.add_outcomes([self.outcome(decision) for decision in made])
        if label:
            self.label(made, gap=gap)
        return made

    def label(self, made, *, gap=0.0, told=None):
        """What the candidate's learner appends; told: number of the decision -> further columns of its row."""
        rows = [self._update(one, gap=gap, told=told(number) if told else {}) for number, one in enumerate(made)]
        with self.database.write() as connection:
            connection.execute(insert(updates), rows)

    def _decision(self):
        self.now += PACE_S
        self.made += 1
        made, version = self.make_decision(f"decision-{self.made:06d}"), self.version
        champion, candidate = np.array([0.9, 0.05, 0.05]), np.array([0.05, 0.9, 0.05])
        weight = version.weight
        pmf = tuple(map(float, (1 - weight) * champion + weight * candidate))
        told = {"version": "v1", "state": version.state, "weight": weight, "snapshot": None, "fault": None}
        told["pmf"] = candidate.tolist()
        if version.state == "canary":
            told["champion"] = champion.tolist()
        drawn = choose(pmf, seed=made.seed)
        facts = {CandidateNotes.key: told} if version.state in ("shadow", "canary") else {}
        arm = made.arms[drawn]
        return replace(made, arm=arm, pmf=pmf, propensity=pmf[drawn], facts=facts, made_at=self.now, explored=False)

    def outcome(self, decision):
        cost = {"seconds_total": float(self.rng.lognormal(0.0, 0.3))}
        told = {"decision_id": decision.id, "now": self.now, "steps": 1.0, "cost": cost}
        return made_outcome(status="answered", answer="Paris", **told)

    def _update(self, decision, *, gap, told):
        self.seq += 1
        mean = 0.5 + (gap / 0.85 if decision.arm == "single_step" else 0.0)
        value = float(self.rng.beta(6.0 * mean, 6.0 * (1.0 - mean)))
        row = {name: getattr(decision, name) for name in ("arm", "propensity")} | {"decision_id": decision.id}
        row |= {"policy": "main.v1", "seq": self.seq, "value": value, "quality": value, "cost": 0.0, "weight": 0.05}
        row |= {"minimum": -1.0, "maximum": 1.0, "terms": '{"steps": 1.0}', "preset": "rating", "source": "explicit"}
        row |= {"feedback_ids": "[]", "sample_weight": 1.0, "made_at": self.now}
        return row | {"judged_by": None, "surrogates": None} | told

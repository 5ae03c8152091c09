"""A store with a version on its way: decisions, outcomes and ledger rows, written as the service does."""

from dataclasses import replace

import numpy as np
from sqlalchemy import insert

from ragbandit.router.config.settings import Settings
from ragbandit.router.policies.draw import choose
from ragbandit.router.rollouts import verbs
from ragbandit.router.rollouts.evaluator import Evaluator
from ragbandit.router.serving.checks.reports import made_outcome
from ragbandit.router.storage import policy_versions as store
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.rows.conversion import update_row
from ragbandit.router.storage.sql.tables import updates
from ragbandit.shared.types import CANDIDATE, PolicyLabel, Reward, Update

BASE = PolicyLabel("main")
#: a decision, and the next one
PACE_S = 10.0


class Trial:
    """A clock, one candidate, and its traffic. The candidate prefers single_step, the champion no_retrieval."""

    def __init__(self, database, *, make_decision, now=1_700_000_000.0, **rollout):
        self.settings = Settings.model_validate({"rollout": rollout})
        self.database, self.make_decision, self.now = database, make_decision, now
        self.decisions = DecisionStore(database, label=BASE)
        self.rng, self.seq, self.made = np.random.default_rng(7), 0, 0
        self.evaluator = Evaluator(database, settings=self.settings)
        verbs.add(database, base=BASE, changes={}, actor="test", reason="tried", now=now)
        self.do("shadow")

    def do(self, verb, **more):
        self.now += 1.0
        act = verbs.Act(verb=verb, name="v1", base=BASE, actor="test", reason="tried", now=self.now, **more)
        return verbs.perform(self.database, act, settings=self.settings.rollout)

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

    def live(self, count, *, gap=0.0, failing=0.0, label=True, outcome=True):
        """Decisions as the version's state has them, with outcomes, and rows of the candidate's ledger."""
        made = [self._decision() for _ in range(count)]
        self.decisions.add_decisions(made)
        if outcome:
            self.decisions.add_outcomes([self._outcome(decision, failing=failing) for decision in made])
        if label:
            self.label(made, gap=gap)
        return made

    def label(self, made, *, gap=0.0, told=None):
        """What the candidate's learner appends; told: number of the decision -> further fields of its reward."""
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
        facts = {CANDIDATE: told} if version.state in ("shadow", "canary") else {}
        arm = made.arms[drawn]
        return replace(made, arm=arm, pmf=pmf, propensity=pmf[drawn], facts=facts, made_at=self.now, explored=False)

    def _outcome(self, decision, *, failing):
        failed = decision.arm == "single_step" and self.rng.random() < failing
        return made_outcome(
            decision_id=decision.id,
            now=self.now,
            status="failed" if failed else "answered",
            answer=None if failed else "Paris",
            error="broken" if failed else None,
            steps=1.0,
            cost={"seconds_total": float(self.rng.lognormal(0.0, 0.3))},
        )

    def _update(self, decision, *, gap, told):
        self.seq += 1
        mean = 0.5 + (gap / 0.85 if decision.arm == "single_step" else 0.0)
        value = float(self.rng.beta(6.0 * mean, 6.0 * (1.0 - mean)))
        reward = Reward(
            value=value,
            quality=value,
            cost=0.0,
            weight=0.05,
            minimum=-1.0,
            maximum=1.0,
            terms={"steps": 1.0},
            preset="rating",
            source="explicit",
        )
        update = Update(
            policy=PolicyLabel("main.v1"),
            seq=self.seq,
            decision_id=decision.id,
            query=decision.query,
            arm=decision.arm,
            arms=decision.arms,
            pmf=decision.pmf,
            scores=None,
            propensity=decision.propensity,
            reward=replace(reward, **told),
            feedback_ids=(),
            features=None,
            made_at=self.now,
        )
        return update_row(update, feedback_at=self.now, disagreement=None)

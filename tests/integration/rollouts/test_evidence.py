"""The evidence on a version in shadow: which rows of a store count, and what it decides."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import insert

from ragbandit.router.learning.monitoring.sample_ratio import SampleRatio
from ragbandit.router.policies.draw import draw_index
from ragbandit.router.reporting.reading import NO_PMF, NOT_ASKED
from ragbandit.router.rollouts import evidence as module
from ragbandit.router.rollouts.evidence import evidence_on
from ragbandit.router.rollouts.version_settings import settings_of
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage import policy_versions as store
from ragbandit.router.storage.access.audit_log import entries
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import updates
from ragbandit.shared.errors import Conflict
from ragbandit.shared.types import CandidateNote, CandidateNotes, PinnedArm
from tests.conftest import on_sqlite
from tests.integration.serving.versions.test_serving import ARMS, FIXED_TWO, PATIENT
from tests.support.logs.replay_logs import close
from tests.support.rollouts import BASE, add, do, shadow

CHAMPION, CANDIDATE = np.array([0.6, 0.3, 0.1]), np.array([0.1, 0.8, 0.1])
NOTE = CandidateNote(version="v1", snapshot=None, pmf=tuple(CANDIDATE.tolist()), fault=None)


class Traffic:
    """A version in shadow that prefers single_step, and its traffic. The champion prefers no_retrieval."""

    def __init__(self, database, *, make_decision):
        self.database, self.make_decision, self.now, self.seq = database, make_decision, 1_700_000_000.0, 0
        self.decisions = DecisionStore(database, label=BASE)
        self.rng = np.random.default_rng(7)
        add(database, now=self.now)
        do(database, "shadow", now=self.now)

    @property
    def version(self):
        with self.database.read() as connection:
            return store.version_named(connection, "v1", base=BASE)

    @property
    def evidence(self):
        return evidence_on(self.database, self.version, now=self.now + 1.0)

    def live(self, count, *, gap=0.0, facts=lambda _number: (NOTE,)):
        """Decisions with outcomes, and rows of the version's ledger. gap: what single_step earns more than others."""
        rows = []
        for number in range(count):
            self.now += 10.0
            self.seq += 1
            decision, pmf = self.make_decision(f"decision-{self.seq:06d}"), tuple(CHAMPION.tolist())
            drawn = draw_index(pmf, seed=decision.seed)
            notes = facts(number)
            stored = {CandidateNotes.key: CandidateNotes(notes=notes).stored} if isinstance(notes, tuple) else notes
            values = {"arm": decision.arms[drawn], "pmf": pmf, "propensity": pmf[drawn], "made_at": self.now}
            values["query"] = replace(decision.query, text=f"Who wrote book {self.seq}?")
            values["arm_by"] = "kill switch" if PinnedArm.key in stored else None
            rows.append(replace(decision, facts=stored, explored=False, **values))
        self.decisions.add_decisions(rows)
        self.decisions.add_outcomes(
            [make_outcome(decision_id=one.id, now=self.now, status="answered", answer="x", steps=1.0) for one in rows]
        )
        learned = [self._update(one, gap=gap, seq=self.seq - count + n + 1) for n, one in enumerate(rows)]
        with self.database.write() as connection:
            connection.execute(insert(updates), learned)

    def _update(self, decision, *, gap, seq):
        mean = 0.5 + (gap if decision.arm == "single_step" else 0.0)
        value = float(self.rng.beta(6.0 * mean, 6.0 * (1.0 - mean)))
        row = {name: getattr(decision, name) for name in ("arm", "propensity")} | {"decision_id": decision.id}
        row |= {"policy": "main.v1", "seq": seq, "value": value, "quality": value, "cost": 0.0, "weight": 0.05}
        row |= {"minimum": -1.0, "maximum": 1.0, "terms": '{"steps": 1.0}', "preset": "rating", "source": "explicit"}
        row |= {"feedback_ids": "[]", "sample_weight": 1.0, "made_at": self.now}
        return row | {"judged_by": None, "surrogates": None}


@pytest.fixture
def traffic(database, make_decision):
    return Traffic(database, make_decision=make_decision)


@on_sqlite
def test_a_promotion_needs_a_better_version(traffic):
    """A version that is better is promoted; the audit log has the comparison."""
    traffic.live(400, gap=0.3)
    comparison = traffic.evidence.comparison
    assert (comparison.first, comparison.second, comparison.verdict) == ("v1", "main", "better")
    assert comparison.reward.low < 0.5 * 0.3 < comparison.reward.high  # the version draws single_step 0.5 more often
    assert traffic.evidence.sentence.startswith("v1 is better than main: +0.1")
    assert do(traffic.database, "promote", now=traffic.now).reason == "because"
    (entry,) = [one for one in entries(traffic.database) if (one.action, one.target) == ("policy.promote", "policy:v1")]
    assert entry.facts["comparison"]["verdict"] == "better"
    assert traffic.evidence is None


def evidence_there(url, version, now):
    with closing(Database(url)) as database:
        return evidence_on(database, version, now=now)


@on_sqlite
def test_another_processor_has_the_same_evidence(traffic, other_processor):
    """The comparison of a version has the same verdict on another processor, and its numbers differ by rounding."""
    traffic.live(400, gap=0.3)
    url = traffic.database.url.render_as_string(hide_password=False)
    close(other_processor.call(evidence_there, url, traffic.version, traffic.now + 1.0), traffic.evidence)


@on_sqlite
def test_a_version_that_is_not_better_is_not_promoted(traffic):
    """Too little evidence and a worse version are refused, with the comparison in words."""
    with pytest.raises(Conflict, match="missing: rated answers of both ways"):
        do(traffic.database, "promote", now=traffic.now)
    traffic.live(400, gap=-0.3)
    assert traffic.evidence.comparison.verdict == "worse"
    with pytest.raises(Conflict, match="does not show that 'v1' is better: v1 is worse than main"):
        do(traffic.database, "promote", now=traffic.now)


@on_sqlite
def test_rows_that_are_no_evidence_do_not_count(traffic):
    """Decisions before the shadow, pinned ones, and those without the version's pmf are left out, with a reason."""
    slow = replace(NOTE, pmf=None, fault="slow")
    other = replace(NOTE, version="v2")
    kinds = [(other, NOTE), (slow,), (other,), {PinnedArm.key: {"arm": "no_retrieval"}}, {}]
    traffic.live(10, facts=lambda number: kinds[number % 5])
    evidence = traffic.evidence
    assert evidence.sample is None
    assert evidence.comparison.questions == evidence.comparison.rated == 2
    assert evidence.left_out == {NO_PMF: 2, NOT_ASKED: 4, "decided by the kill switch": 2}
    late = replace(traffic.version, since=traffic.now - 45.0)  # the last five decisions
    assert evidence_on(traffic.database, late, now=traffic.now + 1.0).comparison.questions == 1


@pytest.mark.parametrize(("stage", "verdict"), [("judged", "better"), ("drawn", "not known yet")])
def test_a_log_whose_draws_are_uneven_is_no_evidence(traffic, monkeypatch, stage, verdict):
    """What is missing is the finding of the sample-ratio test; uneven ratings leave the verdict."""
    traffic.live(400, gap=0.3)
    monkeypatch.setattr(
        module, "recent_sample_ratio", lambda *_, **__: SampleRatio(stage=stage, sentence="fast is favoured")
    )
    comparison = traffic.evidence.comparison
    assert comparison.verdict == verdict
    assert comparison.missing == (None if verdict == "better" else "fast is favoured")


@on_sqlite
def test_a_version_that_often_gives_no_pmf_has_no_verdict(traffic):
    """With 5 % faults, and at least 20, a verdict misses fewer faults."""
    traffic.live(400, gap=0.3, facts=lambda number: (NOTE if number % 10 else replace(NOTE, pmf=None, fault="slow"),))
    comparison = traffic.evidence.comparison
    assert (comparison.verdict, comparison.reward.low > 0.0) == ("not known yet", True)
    assert comparison.missing == "fewer faults: v1 gave no probabilities for 40 of 400 decisions"


def test_a_better_shadow_becomes_champion(make_world):
    """Judged in its own ledger, a better version is promoted, and decides from the next decision on."""
    world = make_world(arms=ARMS, policy={"name": "uniform"}, **PATIENT)
    shadow(world, reward={"weight": 0.0}, **FIXED_TWO)
    with world.database.read() as connection:
        version = store.version_named(connection, "v1", base=BASE)
    for number in range(150):
        world.now += 10.0
        decision = world.route(key=f"00000000-0000-7000-8000-{number:012d}")  # the same draws in every run
        world.outcome(decision)
        world.feedback(decision, rating=0.9 if decision.arm == "two" else 0.1)
    ledger, settings = Ledger(world.database, label=version.label), settings_of(world.settings, version)
    make_learner(settings, ledger, files=world.files, clock=world.clock).drain()
    do(world.database, "promote", now=world.now + 1.0)
    world.router.refresh()
    decision = world.route()
    assert (decision.policy, CandidateNotes.key in decision.facts) == (version.label, False)

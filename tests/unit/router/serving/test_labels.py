"""The label queue: q of each question, the share that is asked for, and what weighted labels say of all questions."""

from dataclasses import replace
from hashlib import sha256
from types import SimpleNamespace

import numpy as np
import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.sources import LEAST_LABELLED, selection_weight
from ragbandit.router.policies.base import PolicyOutput
from ragbandit.router.serving.deciding.steps.labels import Labels
from ragbandit.router.serving.deciding.steps.step import Question
from ragbandit.shared.types import LabelRequest, Query
from tests.support.examples import made_decision

ARMS = ("a", "b", "c")
SHARE = 0.05
SECRET = b"of the store"


def output(generator, *, gap: float) -> PolicyOutput:
    scores = (0.5, 0.5 - gap, -1.0)
    return PolicyOutput(pmf=(0.6, 0.3, 0.1), scores=scores, deviations=generator.normal(0.0, 0.1, (3, 64)))


def question(number: int, **more) -> Question:
    decision = made_decision(f"q{number}", arms=ARMS, pmf=(0.6, 0.3, 0.1), arm="a", propensity=0.6)
    return Question(query=Query(text="q"), run_by="caller", allowed=ARMS, decision=replace(decision, **more))


@pytest.fixture
def labels(monkeypatch):
    """The step with 100 labels a day, while 100 / SHARE decisions a day are made."""
    step = Labels(None)
    step.configure(SimpleNamespace(settings=Settings(learning={"labels_per_day": 100})))
    monkeypatch.setattr(
        "ragbandit.router.serving.deciding.steps.labels._draws_per_day", lambda _database, *, now: 100 / SHARE
    )
    return step


def requests(labels, questions, outputs, *, secret=SECRET) -> list[LabelRequest]:
    labels.after(SimpleNamespace(questions=questions, outputs=outputs, secret=secret))
    return [question.fact(LabelRequest) for question in questions]


def test_q_follows_use(labels):
    """Q is c * sd(D) * share of samples where the second arm is ahead, within [least, 1]; its mean is the share."""
    generator = np.random.default_rng(1)
    outputs = [output(generator, gap=float(gap)) for gap in generator.uniform(0.0, 0.6, 300)]
    questions = [question(number) for number in range(300)]
    # Before the traffic is known, every decision gets a label.
    assert {request.q for request in requests(labels, questions, outputs)} == {1.0}
    requests(labels, [question(301, fault="2 scores")], [replace(outputs[0], scores=(0.5, 0.4, 0.3, 0.2))])
    assert labels._uses.pop() == (1.0, 0.0)
    labels.refresh(arms=(), now=0.0)
    q = np.array([request.q for request in requests(labels, questions, outputs)])
    ahead = np.array([0.0 + (o.scores[0] - o.scores[1]) + o.deviations[0] - o.deviations[1] for o in outputs])
    uses = ahead.std(axis=1) * (ahead < 0).mean(axis=1)
    assert q.mean() == pytest.approx(SHARE, rel=0.02)
    inner = (q > 1.001 * LEAST_LABELLED * SHARE) & (q < 1.0)
    assert inner.sum() > 100
    np.testing.assert_allclose(q[inner] / uses[inner], (q[inner] / uses[inner])[0], rtol=1e-9)
    assert q.min() == pytest.approx(LEAST_LABELLED * SHARE)


def test_weighted_labels_speak_of_all(labels):
    """The weighted mean of a quality that depends on the gap is that of all 20,000 questions; the plain one is not."""
    generator = np.random.default_rng(2)
    gaps = generator.uniform(0.0, 0.6, 2000)
    outputs = [output(generator, gap=float(gap)) for gap in gaps]
    requests(labels, [question(number) for number in range(300)], outputs[:300])
    labels.refresh(arms=(), now=0.0)
    asked, weights = [], []
    for turn in range(10):
        questions = [question(2000 * turn + number) for number in range(2000)]
        for gap, request in zip(gaps, requests(labels, questions, outputs), strict=True):
            if request.asked:
                asked.append(gap)
                weights.append(selection_weight({LabelRequest.key: request.stored}, source="label"))
    assert len(asked) == pytest.approx(1000, rel=0.15)
    assert np.average(asked, weights=weights) == pytest.approx(gaps.mean(), abs=0.02)
    assert abs(np.mean(asked) - gaps.mean()) > 0.1
    assert max(weights) <= 1 / LEAST_LABELLED + 1e-9


def test_nobody_can_foresee_who_is_asked_for(labels):
    """The row has the draw that decides, of the store's secret: ids ground for one secret say nothing under another."""
    questions = [question(number) for number in range(1000)]
    labels.share = 0.2
    asked = {}
    for secret in (SECRET, b"of another store"):
        drawn = requests(labels, questions, [PolicyOutput(pmf=(0.6, 0.3, 0.1))] * 1000, secret=secret)
        assert all(request.asked == (request.draw < request.q) for request in drawn)
        assert all(request.uniform == (request.draw < LEAST_LABELLED * request.share) for request in drawn)
        asked[secret] = {one.decision.id for one, request in zip(questions, drawn, strict=True) if request.asked}
    ground, other = asked.values()
    assert len(ground & other) / len(ground) == pytest.approx(0.2, abs=0.1)
    salted = [int.from_bytes(sha256(f"ragbandit label:{one.decision.id}".encode()).digest()[:8]) for one in questions]
    known = {one.decision.id for one, number in zip(questions, salted, strict=True) if number < 0.2 * 2.0**64}
    assert len(ground & known) / len(ground) == pytest.approx(0.2, abs=0.1)


def test_without_samples_all_alike(labels):
    """Without posterior samples, or after a failure, every question is equally likely; one with a single arm never is
    chosen.
    """
    labels.refresh(arms=(), now=0.0)
    questions = [question(number) for number in range(50)]
    requests(labels, questions, [PolicyOutput(pmf=(0.6, 0.3, 0.1)), RuntimeError("broken")] * 25)
    labels.refresh(arms=(), now=0.0)
    drawn = requests(labels, questions, [RuntimeError("broken")] * 50)
    assert [request.q for request in drawn] == [pytest.approx(SHARE)] * 50
    alone = question(0, arms=("a",), pmf=(1.0,), propensity=1.0)
    assert requests(labels, [alone], [RuntimeError("broken")]) == [None]
    assert selection_weight({}, source="label") == 1.0
    assert selection_weight({LabelRequest.key: {"asked": False, "q": 0.01, "share": 0.05}}, source="label") == 1.0


def test_q_follows_the_weight_in_the_report(labels):
    """With an arm to compare with, a rare draw of it is asked for most, and a sure draw of it least."""
    labels._against = "a"
    drawn = [("a", 0.96), ("b", 0.02), ("a", 0.02)]
    questions = []
    for number in range(300):
        arm, p = drawn[0 if number % 50 else 1 if number % 100 else 2]
        questions.append(question(number, arm=arm, propensity=p))
    outputs = [RuntimeError("no samples")] * 300
    for _ in range(2):
        labels.refresh(arms=(), now=0.0)
        drawn_requests = requests(labels, questions, outputs)
    pairs = zip(questions, drawn_requests, strict=True)
    by_draw = {one.decision.arm + str(one.decision.propensity): request.q for one, request in pairs}
    assert by_draw["a0.02"] > by_draw["b0.02"] > by_draw["a0.96"]
    assert np.mean([request.q for request in drawn_requests]) == pytest.approx(SHARE, rel=0.02)

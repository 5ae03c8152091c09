"""The evaluator on a real store: what it reads, keeps and does, and that another one goes on for it."""

import json
import shutil
from dataclasses import replace

import pytest

from ragbandit.router.config.sections import RolloutSettings
from ragbandit.router.learning.monitoring.arm_changes import SampleRatio
from ragbandit.router.rollouts import evaluator
from ragbandit.router.rollouts.evaluator import Evaluator
from ragbandit.router.rollouts.verdicts import Evidence, comparison_of, decide
from ragbandit.router.storage.access.audit_log import entries
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, outcomes, updates
from ragbandit.shared.errors import Conflict
from ragbandit.shared.types import CandidateNotes
from tests.support.rollouts import BASE, Trial


@pytest.fixture
def trial(tmp_path, sqlite_template, make_decision):
    shutil.copyfile(sqlite_template, tmp_path / "one.db")
    opened = Database(f"sqlite:///{tmp_path / 'one.db'}")
    yield Trial(opened, make_decision=make_decision)
    opened.close()


def reader_of(trial):
    """A reader that begins now."""
    evidence = Evidence(settings=trial.settings.rollout)
    return evaluator.VersionReader(version=trial.version, champion=BASE, prices={"steps": 1.0}, evidence=evidence)


def test_a_version_that_is_better_waits_for_a_person(trial):
    """However often the evaluator is a new one, only the verdict changes; in another share it has to be found again."""
    trial.do("canary", weight=0.25)
    for _ in range(3):
        trial.live(80, gap=0.3)
        trial.look(afresh=True)
    assert (trial.version.state, trial.version.weight) == ("canary", 0.25)
    assert trial.version.waits_for == "a person: ragbandit policy promote v1"
    assert {one.kind for one in trial.verdicts} == {"not known yet", "better"}
    compared = comparison_of(trial.verdicts[0].facts)
    assert (compared.first, compared.second, compared.verdict) == ("v1", "main", "better")
    trial.settings = trial.settings.model_copy(update={"rollout": RolloutSettings(margin=0.5)})
    with pytest.raises(Conflict, match="does not show that 'v1' is better"):
        trial.do("promote")
    trial.settings = trial.settings.model_copy(update={"rollout": RolloutSettings()})
    trial.do("canary", weight=0.5)
    with pytest.raises(Conflict, match="does not show that 'v1' is better"):
        trial.do("promote")
    trial.live(200, gap=0.3)
    trial.look()
    assert trial.do("promote").reason == "because"


def test_the_store_and_the_arrays_say_the_same(trial, monkeypatch):
    """Read in pages of 7 or at once, in one look or in many, by one process or by two: one verdict."""
    trial.do("canary", weight=0.25)
    found = []
    for page, looks in ((7, 1), (1000, 3)):
        monkeypatch.setattr(evaluator, "PAGE", page)
        reader = reader_of(trial)
        evidence = reader.evidence
        for _ in range(looks):
            if not found:
                trial.live(110, gap=0.1)
            assert reader.read(trial.database, now=trial.now + 6.0)
        found.append(decide(trial.version, evidence=evidence, now=trial.now))
        assert (evidence.questions, evidence.rewards.rows) == (110, 110)
    assert found[0] == found[1]


def test_only_a_ledger_that_was_read_is_judged(trial, monkeypatch):
    """A new evaluator does not judge a version, until it has read all pages."""
    trial.do("canary", weight=0.25)
    trial.live(10)
    monkeypatch.setattr(evaluator, "PAGE", 1)
    monkeypatch.setattr(evaluator, "PAGES", 6)
    assert [len(trial.look()) for _ in range(3)] == [0, 1, 1]


def test_one_evaluator_at_a_time_and_paused_ones_rest(trial):
    """Who does not hold the lease looks at nothing; a paused version is not looked at, and can be rolled back."""
    trial.live(60)
    other = Evaluator(trial.database, settings=trial.settings)
    assert len(trial.look()) == 1
    assert other.evaluate(now=trial.now) == []
    trial.evaluator.close()
    assert [one.finding.kind for one in other.evaluate(now=trial.now)] == ["not known yet"]
    trial.do("pause")
    assert other.evaluate(now=trial.now) == []
    assert trial.do("rollback").state == "rolled_back"


def test_a_person_who_was_quicker_wins(trial, monkeypatch):
    """A version that was changed while it was judged keeps what the person did."""
    trial.do("canary", weight=0.5)
    trial.live(300, gap=-0.3)
    read = evaluator.VersionReader.read

    def slowly(self, database, **more):
        done = read(self, database, **more)
        trial.do("pause")
        return done

    monkeypatch.setattr(evaluator.VersionReader, "read", slowly)
    (look,) = trial.look()
    assert look.finding.kind == "rollback"
    assert trial.version.state == "paused"


def test_rows_that_were_not_drawn_do_not_count(trial):
    """A shadow next to a canary is judged by its own pmf against the champion's; decisions with one arm or a fault are
    skipped.
    """
    made = [trial.make_decision(f"row-{number}") for number in range(4)]
    other = {"version": "v2", "state": "canary", "weight": 0.5, "pmf": [0.1, 0.8, 0.1], "champion": [0.9, 0.05, 0.05]}
    ours = {"version": "v1", "state": "shadow", "weight": 0.0, "pmf": [0.2, 0.2, 0.0], "fault": None, "unseen": 0.6}
    fault = {**ours, "pmf": None, "fault": "slow"}
    facts = [{**other, "others": [ours]}, fault, other, {"version": "v1"}]
    told = [
        replace(one, made_at=trial.now + 1.0, facts={CandidateNotes.key: said})
        for one, said in zip(made, facts, strict=True)
    ]
    stays = replace(trial.make_decision("row-4"), arms=("single_step",), arm="single_step", pmf=(1.0,), propensity=1.0)
    told.append(replace(stays, made_at=trial.now + 1.0, facts={CandidateNotes.key: ours}))
    trial.decisions.add_decisions(told)
    trial.decisions.add_outcomes([trial.outcome(one) for one in told])
    evidence = evidence_on(trial)
    assert (evidence.questions, evidence.faults) == (1, 1)
    # The candidate is compared on the arms that can be drawn: 0.2 of 0.4 is 0.5, divided by the logged probability.
    assert evidence.failures.sums[3] == pytest.approx(0.5 / told[0].propensity)


def evidence_on(trial):
    """What a reader that begins now finds."""
    reader = reader_of(trial)
    assert reader.read(trial.database, now=trial.now + 10.0)
    return reader.evidence


def test_rows_of_a_state_before_of_a_former_champion_and_damaged_ones_do_not_count(trial):
    """For a moment routers decide by the former weight, or with the former champion; damage ends no reading."""
    trial.do("canary", weight=0.5)
    ours, early, former, broken, damaged, torn, uncounted = trial.live(7)
    told = {**early.facts[CandidateNotes.key], "weight": 0.25}
    changes = {
        early.id: {"facts": json.dumps({CandidateNotes.key: told})},
        former.id: {"policy": "main.v0"},
        damaged.id: {"facts": '{"candidate": '},
        torn.id: {"pmf": "torn"},
        broken.id: {
            "fault": "a bug",
            "facts": json.dumps({CandidateNotes.key: {**broken.facts[CandidateNotes.key], "pmf": None}}),
        },
    }
    with trial.database.write() as connection:
        for key, values in changes.items():
            connection.execute(decisions.update().where(decisions.c.id == key).values(**values))
        connection.execute(outcomes.update().where(outcomes.c.decision_id == uncounted.id).values(cost="torn"))
        connection.execute(updates.update().where(updates.c.decision_id == uncounted.id).values(surrogates="torn"))
    evidence = evidence_on(trial)
    assert (evidence.questions, evidence.faults) == (1, 0)  # and the champion's own fault is not its
    assert evidence.rewards.rows == 2
    assert ours.id


def test_a_log_whose_draws_are_uneven_takes_the_version_out(trial, monkeypatch):
    """The reason is the finding of the sample-ratio test; uneven ratings take no version out."""
    trial.do("canary", weight=0.5)
    trial.live(40, gap=0.0)
    for stage, state in (("judged", "canary"), ("drawn", "rolled_back")):
        told = SampleRatio(stage=stage, sentence="fast is favoured")
        monkeypatch.setattr(evaluator, "lately", lambda *_, told=told, **__: told)
        trial.look()
        assert trial.version.state == state
    assert (trial.verdicts[0].kind, comparison_of(trial.verdicts[0].facts).verdict) == ("invalid", "not known yet")
    assert "fast is favoured" in trial.verdicts[0].reason


def test_an_evaluator_that_dies_between_verdict_and_change_leaves_neither(trial, monkeypatch):
    """Verdict and change are one transaction: the next one finds the version as it was, and does it."""
    trial.do("canary", weight=0.5)
    trial.live(300, gap=-0.3)
    kept = trial.verdicts

    def dies(*_args, **_more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(evaluator, "perform_within", dies)
        with pytest.raises(KeyboardInterrupt):
            trial.look()
    assert (trial.version.state, trial.verdicts) == ("canary", kept)
    trial.look(afresh=True)
    assert (trial.version.state, trial.verdicts[0].kind) == ("rolled_back", "rollback")
    told = {(one.action, one.actor): one.facts for one in entries(trial.database)}
    assert comparison_of(told["policy.rollback", "evaluator"]) == comparison_of(trial.verdicts[0].facts)


def test_scores_of_a_judge(database, make_decision):
    """If people rated 20 earlier judged answers, only ratings make rewards."""

    def told(number):
        human = {"judged_by": "human", "surrogates": '{"judge": 0.75}', "cost": 2.0}
        return human if number % 3 == 0 else {"judged_by": "judge"}

    trial = Trial(database, make_decision=make_decision)
    trial.do("canary", weight=0.25)
    trial.label(trial.live(57, label=False), told=told)
    trial.do("canary", weight=0.5)
    trial.label(trial.live(30, label=False), told=told)
    assert evidence_on(trial).rewards.rows == 30  # 19 are too few: a score is a reward
    trial.do("canary", weight=0.25)
    trial.label(trial.live(30, label=False), told=told)
    assert evidence_on(trial).rewards.rows == 10

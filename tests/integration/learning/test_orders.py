"""Any order of deciding, answering, judging, waiting, learning and dying keeps the books of a ledger in order."""

import contextlib
import itertools
import json
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings as hypothesis_settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import select

from ragbandit.router.storage.sql.tables import feedback, waiting
from ragbandit.shared.errors import Conflict
from tests.conftest import World, made_settings


class Loop(RuleBasedStateMachine):
    """A router and its learner, with the decisions and judgements so far."""

    template: Path

    @initialize(
        wait_s=st.sampled_from([0.0, 20.0]),
        default=st.sampled_from([None, -0.25]),
        how=st.sampled_from(["first", "last", "mean", "sum", "min", "max"]),  # with wait_s 0: "first"
        batch=st.integers(1, 5),
    )
    def begin(self, wait_s, default, how, batch):
        self.folder = tempfile.TemporaryDirectory(dir=self.template.parent)
        learning = {"wait_s": wait_s, "default_reward": default, "aggregate": how if wait_s else "first"}
        learning["batch"] = batch
        learning |= {"expire_s": 100.0, "lease_s": 10.0}
        given = {"data_dir": self.folder.name, "learning": learning}
        self.world = World(made_settings(given, template=self.template))
        self.learner = self.world.learner()
        self.made, self.sent = [], {}
        self.keys = itertools.count(1)

    @rule(ours=st.booleans())
    def route(self, ours):
        self.made.append(self.world.route(ours=ours, key=f"d{next(self.keys):04}"))

    @precondition(lambda self: self.made)
    @rule(data=st.data())
    def route_again(self, data):
        decision = data.draw(st.sampled_from(self.made))
        again = self.world.route(decision.query.text, ours=decision.run_by == "worker", key=decision.id)
        assert (again.arm, again.pmf, again.made_at) == (decision.arm, decision.pmf, decision.made_at)

    @precondition(lambda self: self.made)
    @rule(data=st.data(), answer=st.sampled_from(["Paris", "Rome", ""]))
    def outcome(self, data, answer):
        decision = data.draw(st.sampled_from(self.made))
        try:
            self.world.outcome(decision, answer=answer, by_worker=decision.run_by == "worker")
        except Conflict:
            assert decision.run_by == "caller"

    @precondition(lambda self: self.made)
    @rule(data=st.data(), value=st.sampled_from([{"rating": True}, {"label": ["Paris"]}, {"reward": -0.5}]))
    def feedback(self, data, value):
        key = f"f{next(self.keys):04}"
        decision = data.draw(st.sampled_from(self.made))
        receipt = self.world.feedback(decision, feedback_id=key, **value)
        assert not receipt.duplicate
        self.sent[key] = (decision, value)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def feedback_again(self, data):
        key = data.draw(st.sampled_from(sorted(self.sent)))
        decision, value = self.sent[key]
        assert self.world.feedback(decision, feedback_id=key, **value).duplicate

    @rule(seconds=st.sampled_from([1.0, 5.0, 15.0, 120.0]))
    def advance(self, seconds):
        self.world.now += seconds
        if seconds > self.world.settings.learning.lease_s:
            self.world.expire_leases()

    @rule()
    def learn(self):
        self.learner.drain()
        self.world.router.refresh()
        # Where another learner holds the lease nothing is learned and nothing published.
        world, holder = self.world, self.learner.holder
        if world.ledger.acquire(holder=holder, lease_s=world.settings.learning.lease_s):
            assert world.sha256(self.learner.policy) == world.sha256(world.replayed())
            assert world.router.service.serving.last_seq == world.ledger.last_seq()

    @rule(after_append=st.booleans())
    def die(self, after_append):
        if after_append:
            self.learner.publish = self._killed
            with contextlib.suppress(RuntimeError):
                self.learner.drain()
        self.learner = self.world.learner()

    @staticmethod
    def _killed(**_: object) -> None:
        raise RuntimeError("killed")

    @invariant()
    def books_in_order(self):
        world = self.world
        counters = world.counters()
        assert counters.balanced
        assert counters.decided == len(self.made)
        rows = world.updates()
        assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
        assert len({row["decision_id"] for row in rows}) == len(rows)
        used = [key for row in rows for key in json.loads(row["feedback_ids"])]
        with world.database.read() as connection:
            late = set(connection.execute(select(feedback.c.id).where(feedback.c.late)).scalars())
            pending = set(
                connection.execute(
                    select(feedback.c.id).join(waiting, waiting.c.decision_id == feedback.c.decision_id)
                ).scalars()
            )
        # A rater may change their mind before the decision closes: an earlier judgement is neither used nor late.
        learned = {row["decision_id"] for row in rows}
        in_time = {key for key, (decision, _) in self.sent.items() if decision.id in learned} - late
        assert len(used) == len(set(used))
        assert set(used) <= in_time
        assert in_time | late | pending == set(self.sent)
        assert not in_time & pending

    def teardown(self):
        if not hasattr(self, "world"):
            return
        world = self.world
        world.now += 1000
        world.expire_leases()
        world.learn()
        world.now += 1000
        world.learn()
        try:
            self.books_in_order()
            assert world.counters().waiting == 0
            verdict = world.router.verify(deep=True)
            assert verdict.ok, verdict.notes
            assert world.sha256(world.replayed()) == verdict.live_sha256 or not world.updates()
        finally:
            world.close()
            self.folder.cleanup()


def test_every_order(sqlite_template):
    """Whatever order things happen in: the books balance, no gap, nothing twice, replay gives the live policy."""
    machine = type("LoopHere", (Loop,), {"template": sqlite_template}).TestCase
    machine.settings = hypothesis_settings(
        max_examples=6,
        stateful_step_count=25,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    machine("runTest").runTest()

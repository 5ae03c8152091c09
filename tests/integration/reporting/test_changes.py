"""Drift in reports and in `status`: when it was, what followed, and the period after it; on each database."""

import json
import re

from sqlalchemy import update

from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.operation.findings import findings_of_ledger
from ragbandit.router.reporting.reading import ReportScope
from ragbandit.router.reporting.report import report
from ragbandit.router.reporting.status import status
from ragbandit.router.storage.sql.tables import policies

DRIFTING = {"state": "drifting", "worth": 0.1, "labels": 30, "questions": 90}


def test_a_drift_has_its_age_and_what_followed(world):
    """`status` and the report say how many questions ago an arm got worse, and which share goes to it since; the report
    has the command for the newer part of its period.
    """
    rewards = {True: 0.0, False: 1.0}
    later = {"single_step": 0}
    for number in range(240):
        world.now += 60.0
        decision = world.route()
        world.outcome(decision)
        has_drifted = number >= 140 and decision.arm == "single_step"
        later["single_step"] += has_drifted
        world.feedback(decision, reward=rewards[has_drifted] - 0.05 * (number % 2))
    world.learn()
    diagnosis = {"state": "drifting", "arms": {"single_step": DRIFTING}, "judged": later}
    world.write(update(policies).values(diagnosis=json.dumps(diagnosis)))
    rule = closing_rule(world.settings.learning)
    read = status(world.ledger, serving=world.router.service.serving.policy, rule=rule, now=world.now)
    (drift,) = (one for one in findings_of_ledger(read) if one.about == "drift")
    words = r"single_step got worse about (90|100) questions ago; since then (\d+) % of the questions go to it"
    matched = re.fullmatch(words, drift.what)
    assert matched is not None, drift.what
    assert abs(int(matched[2]) - later["single_step"]) <= 4
    assert drift.remedy == "look at what changed behind single_step, which is learned again"
    scope = ReportScope(label="main", since=world.now - 86_400.0, until=world.now + 1.0, reward=world.settings.reward)
    found = report(world.database, scope, policy=world.settings.policy)
    assert [one.what for one in found.changes] == [drift.what]
    newer = ReportScope(label="main", since=found.changes[0].at + 1.0, until=world.now + 1.0)
    assert report(world.database, newer, policy=world.settings.policy).changes == ()

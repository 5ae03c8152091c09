"""The last verdict of a comparison is stored, and explained when it is withdrawn."""

import pytest

from ragbandit.router.reporting import last_verdicts
from ragbandit.router.reporting.last_verdicts import report_with_last_verdict
from ragbandit.router.reporting.reading import ReportScope
from ragbandit.router.storage.sql.positions import position_of


@pytest.fixture
def world(make_world):
    return make_world(policy={"name": "uniform"})


def ask(world, count, *, best):
    """Questions to all arms alike, which one arm answers right and the other arms answer wrong."""
    for _ in range(count):
        world.now += 60.0
        decision = world.route()
        world.outcome(decision)
        world.feedback(decision, rating=float((decision.arm == "multi_step") == best))
    world.learn()


def report_now(world, *, days=7.0, tenant=None):
    now, settings = world.now + 1.0, world.settings
    scope = ReportScope(label="main", since=now - days * 86_400.0, until=now, tenant=tenant, reward=settings.reward)
    return report_with_last_verdict(world.database, scope, policy=settings.policy, against="multi_step", now=now)


def stored(world):
    with world.database.read() as connection:
        return position_of(connection, "last verdicts:main")


def test_a_withdrawn_verdict_says_when_it_was_given_and_why(world):
    """A verdict that holds adds nothing. A contradicted verdict has its moment and the number of newer questions."""
    ask(world, 150, best=True)
    first = report_now(world)
    assert (first.total.verdict, first.withdrawn) == ("worse", None)
    assert report_now(world).withdrawn is None
    assert [one["verdict"] for one in stored(world).values()] == ["worse"]
    ask(world, 150, best=False)
    second = report_now(world)
    assert second.total.verdict != "worse"
    assert second.withdrawn.startswith("At 2023-")
    assert " the report said worse (reward -" in second.withdrawn
    assert second.withdrawn.endswith("; the newest 150 questions differ.")
    assert second.sentence.endswith(second.withdrawn)
    other = report_now(world, days=6.0)
    assert other.withdrawn is None  # nothing was said of this comparison


def test_a_report_of_the_past_stores_nothing(world):
    """Only reports that end now store their verdict, and a ledger has a limited number of them."""
    ask(world, 150, best=True)
    scope = ReportScope(label="main", since=world.now - 86_400.0, until=world.now + 1.0, reward=world.settings.reward)
    given = {"policy": world.settings.policy, "against": "multi_step"}
    assert report_with_last_verdict(world.database, scope, **given, now=world.now + 3_600.0).total.verdict == "worse"
    assert stored(world) == {}


def test_the_number_of_stored_verdicts_is_limited(world, monkeypatch):
    """A ledger has the newest verdicts of a limited number of comparisons."""
    monkeypatch.setattr(last_verdicts, "_MOST", 2)
    ask(world, 150, best=True)
    for days in (1.0, 2.0, 3.0):
        world.now += 1.0
        report_now(world, days=days)
    assert sorted(key.rpartition("/")[2] for key in stored(world)) == ["48", "72"]


def test_a_report_that_began_before_another_one_changes_nothing(world):
    """A report whose period ended before the stored verdict neither explains that verdict nor replaces it."""
    ask(world, 150, best=True)
    before, settings = world.now + 1.0, world.settings
    world.now += 60.0
    report_now(world)
    was = stored(world)
    ask(world, 150, best=False)
    scope = ReportScope(label="main", since=before - 7 * 86_400.0, until=before, reward=settings.reward)
    asked = {"policy": settings.policy, "against": "no_retrieval", "now": before}
    changed = {key.replace("/multi_step/", "/no_retrieval/"): one | {"verdict": "other"} for key, one in was.items()}
    last_verdicts._store(world.database, changed, reader="last verdicts:main", now=before)
    was = stored(world)
    assert report_with_last_verdict(world.database, scope, **asked).withdrawn is None
    assert stored(world) == was

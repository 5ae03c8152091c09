"""Changes within a period, and arms that a verdict does not cover."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.report import WORLDS, made
from ragbandit.router.config.learning import PolicySettings
from ragbandit.router.learning.monitoring.drifts import Change
from ragbandit.router.reporting import words
from ragbandit.router.reporting.changes import changes_in
from ragbandit.router.reporting.prompt_line import prompt_line
from ragbandit.router.reporting.reading import ReportScope
from ragbandit.router.reporting.report import report_of

SCOPE = ReportScope(label="main", since=0.0, until=7 * 86_400.0)


def world(number=0, *, count=1_000, seed=1):
    return made(WORLDS[number], count=count, seed=seed).log


def test_worlds_without_a_change_have_none():
    """In worlds whose arms and prices stay there is no change."""
    found = [list(changes_in(world(number, seed=seed))) for number in range(len(WORLDS)) for seed in range(3)]
    assert [one for one in found if one] == []


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_a_price_that_falls_to_a_fifth_is_a_change(factor):
    """The change names both mean costs of an answer, and its moment is within a few answers of the true one."""
    log = world()
    dollars, place = log.costs["dollars"].copy(), log.arms.index("premium")
    later = log.made_at >= np.quantile(log.made_at, 0.6)
    dollars[later & (log.arm == place)] *= factor
    (change,) = changes_in(replace(log, costs={**log.costs, "dollars": dollars}))
    assert change.arm == "premium"
    assert change.what.startswith("an answer of premium costs $")
    assert abs((log.made_at < change.at).mean() - 0.6) < 0.05


def test_a_new_arm_is_a_change():
    """An arm that is offered only after many questions is new from its first offer on."""
    log = world()
    pmf, place = log.pmf.copy(), log.arms.index("premium")
    early = log.made_at < np.quantile(log.made_at, 0.3)
    pmf[early, place] = 0.0
    kept = log.part(~(early & (log.arm == place)))
    kept = replace(kept, pmf=pmf[~(early & (log.arm == place))], offered=None)
    (change,) = (one for one in changes_in(kept) if "is new" in one.what)
    assert (change.arm, change.at) == ("premium", kept.made_at[kept.pmf[:, place] > 0.0].min())


def test_a_report_names_a_change_and_the_period_after_it():
    """The first step of a report names what changed, that the means mix both times, and the command for the newer
    time; the learning curve is marked.
    """
    log = world(6, count=2_000)
    at = float(np.quantile(log.made_at, 0.5))
    drift = Change(at=at, arm="cheap", what="cheap got worse about 900 questions ago; since then 2 % go to it")
    scope = replace(SCOPE, tenant="acme")
    found = report_of(log, scope, policy=PolicySettings(), against="premium", drifts=[drift])
    assert found.changes[0] is drift
    first = words.report_assessment(found, now=found.until).actions[0]
    assert first.startswith(
        f"{drift.what}. The means of this period mix both times: `ragbandit report --since 1970-01-0"
    )
    assert first.endswith(" --tenant acme` reads only the time since then")
    ((before, what),) = found.curve.marks
    assert (what, abs(before / 2_000 - 0.5) < 0.01) == ("cheap got worse about 900 questions ago", True)


def test_a_verdict_begins_with_arms_that_were_hardly_tried():
    """With fewer than ten rated answers of an arm, the sentence begins with that arm; with ten it does not."""
    log = world(2, count=400)
    place = log.arms.index("premium")
    arm = np.full(400, place)
    arm[:8] = 1 - place if place < 2 else 0
    pmf = np.full(log.pmf.shape, 0.01)
    pmf[:, place] = 0.98
    quality = np.where(np.arange(400) < 200, 1.0, np.nan)
    quality[1:8] = np.nan
    log = replace(
        log, arm=arm, quality=quality, pmf=pmf, limits=(-1.0, 1.0), offered=np.ones(log.pmf.shape, dtype=np.bool_)
    )
    other = log.arms[arm[0]]
    found = report_of(log, SCOPE, policy=PolicySettings(), against="premium")
    assert found.total.verdict == "as good"
    start = "98 % of the questions go to premium, so little can differ; "
    assert found.untried.startswith(start)
    assert f"{other} is hardly tried (1 rated)" in found.untried
    assert found.sentence.index(found.untried) < found.sentence.index("routing is as good as always premium")
    assert words.report_assessment(found, now=found.until).headline.endswith(f"; {found.untried}")
    assert prompt_line(found, shares={"premium": 0.98}).endswith(f"; {found.untried}; reward as good")
    tried = np.arange(400) % len(log.arms)
    known = report_of(replace(log, arm=tried, quality=np.ones(400)), SCOPE, policy=PolicySettings(), against="premium")
    assert known.untried is None


def test_stopped_tasks_are_counted_among_the_compared_ones():
    """The note has the stopped tasks of each arm and its compared questions; rows that leave take their tasks along."""
    log = world(2, count=400)
    stopped = np.arange(400) < 8
    log = replace(log, stopped=stopped)
    place = int(log.arm[0])
    counts = f"{log.arms[place]} {(log.arm[stopped] == place).sum()} of {(log.arm == place).sum()}"

    def notes(rows):
        found = report_of(rows, SCOPE, policy=PolicySettings(), against="premium")
        return [note for note in found.notes if note.startswith("tasks that a budget stopped, by arm")]

    [note] = notes(log)
    assert counts in note
    assert notes(log.part(~stopped)) == []

"""Every surface gives the same verdict on made worlds of known truth, and no false one (`benchmarks.surfaces`)."""

import pytest

from benchmarks.surfaces import FAULTS, Claim, Life, World, made
from tests.support.additions import needs
from tests.support.two_pipelines import CHANCES, STEPS, WEIGHT

#: four services, on cores that other tests share
pytestmark = [pytest.mark.timeout(900), needs("advice")]
#: the two pipelines of the newcomer: right on short (kinds 0 and 1) and on long questions
PIPELINES = {
    "chance": [[chance[is_long] for chance in CHANCES.values()] for is_long in (0, 0, 1, 1)],
    "steps": tuple(STEPS.values()),
    "weight": WEIGHT,
}
#: the setups of a run of the tests; the slow test has all
FEW = ("cold", "warm", "incumbent", "budget")


def wrong(lives, kinds=FAULTS[:-1]):
    """(setup, seed) -> faults of these kinds, for the worlds with such faults."""
    found = {(life.world.setup, life.world.seed): life.faults() for life in lives}
    found = {key: [fault for fault in faults if fault.startswith(kinds)] for key, faults in found.items()}
    return {key: faults for key, faults in found.items() if faults}


@pytest.fixture(scope="module")
def newcomers():
    """The newcomer's world in a few setups."""
    return [Life(World(setup=setup, **PIPELINES, questions=200, labelled=100)) for setup in FEW]


def test_the_same_true_verdict_everywhere(newcomers):
    """No setup has a false verdict, two verdicts on one question, or advice that contradicts one or the state."""
    assert wrong(newcomers) == {}


def test_every_surface_is_heard(newcomers):
    """Each surface compares what can be compared, and in some worlds it is known which way is better."""
    surfaces = {(life.world.setup, one.surface) for life in newcomers for one in life.claims}
    everywhere = ("report", "/v1/report", "status", "overview", "replay")
    expected = {(setup, surface) for setup in ("cold", "warm") for surface in everywhere}
    expected |= {("cold", "advise"), ("warm", "advise --table")}
    assert expected <= surfaces
    assert sum(one.verdict == "better" for life in newcomers for one in life.claims) >= 1


def test_the_state_comes_first(newcomers):
    """A spent budget is the state of the report; without one, and without a safe start, there is no state."""
    states = {life.world.setup: life.state for life in newcomers}
    assert states["budget"].startswith("budget: ")
    assert states["incumbent"].startswith("safe start")
    assert states["cold"] is None


@pytest.mark.parametrize(
    ("verdict", "truth", "fault"),
    [("better", -0.1, "false"), ("worse", 0.1, "false"), ("as good", -0.1, "false"), ("as good", 0.3, "missed")],
)
def test_a_fault_is_seen(verdict, truth, fault):
    """A verdict that the truth contradicts is false, and an interval without the truth is missed."""
    assert Claim("status", "served", "always fast", verdict, -0.04, 0.2).fault(truth) == fault
    assert Claim("status", "served", "always fast", "better").contradicts(Claim("x", "always fast", "served", "better"))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_hundred_worlds():
    """In 95 of 100 worlds every surface says the same and nothing false; in 90 every interval contains the truth."""
    lives = [Life(made(seed)) for seed in range(100)]
    assert len(wrong(lives)) <= 5, wrong(lives)
    assert len(wrong(lives, FAULTS[-1:])) <= 10, wrong(lives, FAULTS[-1:])

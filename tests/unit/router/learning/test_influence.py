"""Influence: who is held, with how many others, and who never is."""

import pytest

from ragbandit.router.config.settings import InfluenceSettings
from ragbandit.router.learning.sources.influence import Influence, InfluenceShare
from ragbandit.router.learning.sources.origin import Origin


def part(*, key="app", rater=None, tenant="default", weight=1.0, own=False, role="app"):
    origin = Origin(
        tenant=tenant, key=key, key_names=() if key is None else (key,), role=None if key is None else role, rater=rater
    )
    return InfluenceShare(origin=origin, weight=weight, own=own)


def offered(influence, parts, *, at=0.0):
    """Offer each; those that are not over are learned. The number of those that were, by source."""
    held = {}
    for one in parts:
        over = influence.over(one, at=at)
        if over is None:
            influence.add([one], at=at)
        else:
            held[over] = held.get(over, 0) + 1
    return held


def crowd(count, each, **more):
    return [part(key=f"k{number}", tenant=f"t{number}", **more) for _ in range(each) for number in range(count)]


def test_one_application_alone_is_never_held():
    """A single key whose users are not named may teach as much as it wants, and so may 500 named ones."""
    influence = Influence(InfluenceSettings())
    assert offered(influence, [part() for _ in range(3000)]) == {}
    influence = Influence(InfluenceSettings())
    assert offered(influence, [part(rater=f"user-{number % 500}") for number in range(5000)]) == {}


@pytest.mark.parametrize("others", [1, 2, 3])
def test_with_three_others_nobody_is_held(others):
    """Nobody can tell which of a few sources is the odd one."""
    influence = Influence(InfluenceSettings())
    parts = crowd(others, 300) + [part(key="big", tenant="big") for _ in range(300)]
    assert offered(influence, parts) == {}


def test_a_flood_gets_its_share_and_no_more():
    """A thousand votes of one key, after a crowd of keys, have at most the key's share of the window."""
    settings = InfluenceSettings(tenant_share=1.0)
    influence = Influence(settings)
    assert offered(influence, crowd(50, 20)) == {}
    held = offered(influence, [part(key="bad", tenant="bad") for _ in range(1000)])
    assert set(held) == {"key:bad"}
    learned = 1000 - held["key:bad"]
    assert learned <= settings.key_share * settings.window


def test_keys_of_one_tenant_share_its_cap():
    """Ten keys of one tenant together have at most the tenant's share, though each is below its own."""
    settings = InfluenceSettings()
    influence = Influence(settings)
    assert offered(influence, crowd(50, 20)) == {}
    held = offered(influence, [part(key=f"bad{number % 10}", tenant="bad") for number in range(1000)])
    assert 0 < 1000 - sum(held.values()) <= settings.tenant_share * settings.window + 10 * settings.floor
    assert "tenant:bad" in held


def test_a_rater_of_one_key_is_held():
    """Among the named users of one application, one that judges as much as all others together is held."""
    influence = Influence(InfluenceSettings())
    users = [part(rater=f"user-{number % 200}") for number in range(1000)]
    assert offered(influence, users) == {}
    held = offered(influence, [part(rater="bot") for _ in range(500)])
    assert set(held) == {"rater:bot"}
    assert 500 - held["rater:bot"] <= 50


@pytest.mark.parametrize(
    "trusted", [part(key="bad", role="operator"), part(key=None, own=True), part(key=None), part(key="bad", weight=0.0)]
)
def test_who_is_not_held(trusted):
    """Trusted roles, our own judge, who came without a key and a name, and what counts as no row."""
    influence = Influence(InfluenceSettings())
    offered(influence, crowd(50, 20))
    assert offered(influence, [trusted] * 500) == {}


def test_beside_a_trusted_half_the_share_is_the_share():
    """Where a trusted source makes half of the window, a single other one is held at its share."""
    influence = Influence(InfluenceSettings(trusted=["key:app"]))
    offered(influence, [part(key="app", tenant="a")] * 1000)
    held = offered(influence, [part(key="b", tenant="b")] * 300)
    assert 300 - held["key:b"] == 50


def test_who_is_left_alone_goes_on():
    """Sources that were silent for the days of the window do not hold others back."""
    settings = InfluenceSettings()
    influence = Influence(settings)
    offered(influence, crowd(50, 20))
    assert offered(influence, [part(key="one", tenant="one")] * 100, at=1.0) != {}
    late = settings.days * 86400.0 + 2.0
    assert offered(influence, [part(key="one", tenant="one")] * 100, at=late) == {}

"""Params that name an arm: one check for `serve` and `replay`."""

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.replay.candidates import check_candidate
from ragbandit.router.offline.replay.plan import parse_candidates
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.algorithms.fixed import Uniform
from ragbandit.router.policies.settings_check import check_arms, check_policy
from ragbandit.shared.errors import ConfigError

ARMS = ("no_retrieval", "single_step", "multi_step")

#: policy, params with one arm mistyped, the param that is named
MISTYPED = [
    ("fixed", {"arm": "typo"}, "arm"),
    ("mixture", {"first": "typo", "second": "single_step"}, "first"),
    ("mixture", {"first": "single_step", "second": "typo"}, "second"),
    ("conservative", {"incumbent": "typo"}, "incumbent"),
    ("conservative", {"incumbent": "single_step", "policy": "fixed", "params": {"arm": "typo"}}, "params.arm"),
]


@pytest.mark.parametrize(("name", "params", "field"), MISTYPED, ids=lambda value: str(value)[:30])
def test_a_mistyped_arm_is_refused(name, params, field):
    """The param is named, with the arms that are there."""
    with pytest.raises(ConfigError, match="'typo' is not among the arms") as caught:
        check_arms(make_policy(name, params=params), arms=ARMS, where="policy.params")
    assert caught.value.field == f"policy.params.{field}"
    assert caught.value.remedy == "use one of no_retrieval, single_step, multi_step"


def test_the_arm_of_a_holdback():
    """The holdback's arm must be configured; with an incumbent it must be the incumbent."""
    check_policy(Settings.model_validate({"policy": {"holdback": {"arm": "single_step"}, "incumbent": "single_step"}}))
    for policy, message in (
        ({"holdback": {"arm": "single_stepp"}}, "is not among the arms"),
        ({"holdback": {"arm": "multi_step"}, "incumbent": "single_step"}, "keep its share even if it loses"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            check_policy(Settings.model_validate({"policy": policy}))
        assert caught.value.field == "policy.holdback.arm"


@pytest.mark.parametrize(
    ("falls", "message"), [({"until": 5}, "go together"), ({"until": 5, "then": 0.1}, "at most the share, 0.02")]
)
def test_a_falling_share_is_whole(falls, message):
    """A share falls from a number of answers on, to a smaller share."""
    with pytest.raises(ValueError, match=message):
        Settings.model_validate({"policy": {"holdback": {"arm": "multi_step", **falls}}})


@pytest.mark.parametrize(("name", "params", "field"), MISTYPED, ids=lambda value: str(value)[:30])
def test_replay_refuses_a_mistyped_arm(name, params, field):
    """A candidate that learns from the log is checked before anything is learned, and the error names the candidate."""
    (candidate,) = parse_candidates([name], params={name: params})
    with pytest.raises(ConfigError, match="'typo' is not among the arms") as caught:
        check_candidate(candidate, arms=ARMS)
    assert caught.value.field == f"{name}.{field}"


class Trained(Uniform):
    """A policy that was trained on a table with two of the arms."""

    trained_arms = ARMS[:2]

    def fit(self, rows, *, progress):
        raise NotImplementedError

    def save(self, folder):
        raise NotImplementedError


class Choosy(Trained):
    needs_every_arm = True


def test_a_policy_that_chooses_among_the_arms_of_its_table_needs_every_arm():
    """An arm that the table lacked is refused with `needs_every_arm`, and allowed if the params name the arms."""
    check_arms(Trained(), arms=ARMS, where="policy.params")
    check_arms(Choosy(), arms=ARMS[:2], where="policy.params")
    with pytest.raises(ConfigError, match=r"does not know the arms \['multi_step'\]: it would never choose") as caught:
        check_arms(Choosy(), arms=ARMS, where="policy.params")
    assert caught.value.field == "policy.params.trained"

"""A trained classifier is taken where its table has the arms, and refused where it lacks them."""

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.replay import memory_log, parse_candidates, replay
from ragbandit.router.policies.settings_check import check_policy
from ragbandit.shared.errors import ConfigError
from tests.support.logs.replay_logs import lived_rows
from tests.support.tiny_models import tiny_trained


def trained(name, *, inside=None, first="single_step", **params):
    """The policy section of a classifier of no_retrieval, single_step and multi_step, alone or held back."""
    params = {"trained": tiny_trained(name), "device": "cpu", "max_tokens": 16, "threads": 1, **params}
    return (
        {"name": name, "params": params}
        if inside is None
        else {"name": inside, "params": {"incumbent": first, "policy": name, "params": params}}
    )


@pytest.mark.parametrize("arms", [["single_step", "multi_step"], ["single_step"]])
@pytest.mark.parametrize("name", ["adaptive_rag", "multi_label"])
def test_classifier_may_know_more_arms_than_are_offered(name, arms):
    """A trained classifier is taken where its table has every configured arm, whatever arms only training names."""
    params = {"single": "one", "multi": "many"} if name == "adaptive_rag" else {}
    check_policy(Settings.model_validate({"policy": trained(name, **params), "arms": {arm: {} for arm in arms}}))


@pytest.mark.parametrize(
    ("arms", "unknown", "fault"),
    [
        (["single_step", "deep", "wide"], "['deep', 'wide']", "never choose them"),
        (["no_retrieval", "single_step", "multi_step", "wide"], "['wide']", "never choose them"),
        (["single", "multi"], "['multi', 'single']", "it would choose at random"),
    ],
)
@pytest.mark.parametrize("inside", [None, "conservative"])
def test_classifier_that_does_not_know_the_arms_is_refused(arms, unknown, fault, inside):
    """An arm that the table of a trained classifier lacks is refused by name; inside another policy too."""
    policy = trained("multi_label", inside=inside, first=arms[0]) | {"fallback": arms[0]}
    with pytest.raises(ConfigError) as caught:
        check_policy(Settings.model_validate({"policy": policy, "arms": {arm: {} for arm in arms}}))
    assert caught.value.field == ("policy.params.trained" if inside is None else "policy.params.params.trained")
    assert unknown in caught.value.message
    assert fault in caught.value.message
    assert "ragbandit policy train --policy multi_label" in caught.value.remedy


def test_policies_trained_on_other_arms_are_refused():
    """A classifier whose table lacks the log's arms would play them alike: they are named."""
    params = {"trained": tiny_trained("multi_label"), "device": "cpu", "max_tokens": 16, "threads": 1}
    asked = parse_candidates(["multi_label"], params={"multi_label": params})
    with pytest.raises(ConfigError, match="does not know the arms"):
        replay(memory_log(lived_rows(10)), candidates=asked)


@pytest.mark.parametrize(("name", "params"), [("adaptive_rag", {}), ("multi_label", {})])
def test_untrained_policies_are_refused(name, params):
    """A classifier that nobody trained learns nothing from a log: it is refused, not judged as uniform."""
    asked = parse_candidates([name], params={name: params})
    with pytest.raises(ConfigError, match="is not trained, and does not learn from a log") as caught:
        replay(memory_log(lived_rows(10)), candidates=asked)
    assert caught.value.field == (f"{name}.params.trained" if name == "budget" else f"{name}.trained")
    assert "ragbandit policy train" in caught.value.remedy
    assert f"--param {caught.value.field}=FOLDER" in caught.value.remedy

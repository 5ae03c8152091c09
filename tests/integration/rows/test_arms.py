"""Each arm of the core, from a configuration and an index on disk to an answer of a model with random weights."""

import pytest

from ragbandit.shared.additions import offered
from ragbandit.strategies.registry import built_in_arms
from tests.support.additions import needs
from tests.support.arms.evaluated_arms import check_answer, evaluated
from tests.support.tiny_models import tiny_writer

pytestmark = needs("evaluation")

#: arms that call a server or a function; docs/rows.md names their tests
ELSEWHERE = ("callable", "http", "model")
#: arm -> its params in config.yaml
ARMS = {
    **{name: {} for name in built_in_arms() if name not in (*offered("arms"), "cascade", *ELSEWHERE)},
    "paper_thoughts": {"class": "multi_step", "prompts": "paper", "rounds": 1},
    "cascade": {"first": "no_retrieval", "then": "single_step", "empty": True, "differs_from": "multi_step"},
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Arm -> (its row of `evaluate`, its stored answer), for a model that only decodes."""
    generator = {"model": tiny_writer("llama", positions=4096)}
    return evaluated(tmp_path_factory.mktemp("rows"), arms=ARMS, strategy=",".join(ARMS), generator=generator)


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_answers(rows, arm):
    """The arm answers by calls of its model, after a search unless it may do without."""
    check_answer(*rows[arm], may_know=arm == "no_retrieval")


def test_a_model_with_an_encoder_answers(tmp_path):
    """FLAN-T5's kind of model, tiny and random, answers in the papers' three arms from its configuration."""
    arms = {"no_retrieval": {}, "single_step": {}, "multi_step": {}}
    rows = evaluated(tmp_path, arms=arms, strategy=",".join(arms), generator={"model": tiny_writer("t5")})
    for arm in arms:
        row, stored = rows[arm]
        assert (row["questions"], row["failed"]) == (1, 0), row["failures"]
        assert stored["answer"]
        assert min(stored["cost"]["prompt_tokens"], stored["cost"]["completion_tokens"]) > 0

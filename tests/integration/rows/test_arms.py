"""Each arm of the core, from a configuration and an index on disk to an answer of a model with random weights."""

import pytest

from ragbandit.shared.additions import offered_places
from ragbandit.strategies.registry import built_in_arms
from tests.support.additions import needs
from tests.support.arms.evaluated_arms import check_answer, evaluated
from tests.support.tiny_models import tiny_writer

pytestmark = needs("evaluation", "local_models")

#: arms that call a server or a function; docs/rows.md names their tests
ELSEWHERE = ("callable", "http", "model")
#: arm -> its params in config.yaml
ARMS = {
    **{name: {} for name in built_in_arms() if name not in (*offered_places("arms"), *ELSEWHERE)},
    "paper_thoughts": {"class": "multi_step", "prompts": "paper", "rounds": 1},
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

"""A cascade, from a configuration and an index on disk to an answer of a model with random weights."""

from tests.support.additions import needs
from tests.support.arms.evaluated_arms import check_answer, evaluated
from tests.support.tiny_models import tiny_writer

pytestmark = needs("evaluation", "local_models")


def test_an_arm_answers(tmp_path):
    """The arm answers by calls of its model, after a search."""
    params = {"first": "no_retrieval", "then": "single_step", "empty": True, "differs_from": "multi_step"}
    arms = {"no_retrieval": {}, "single_step": {}, "multi_step": {}, "cascade": params}
    generator = {"model": tiny_writer("llama", positions=4096)}
    rows = evaluated(tmp_path, arms=arms, strategy="cascade", generator=generator)
    check_answer(*rows["cascade"], may_know=False)

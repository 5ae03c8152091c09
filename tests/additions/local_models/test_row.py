"""The papers' three arms, from a configuration and an index on disk to an answer of a local model with an encoder."""

from tests.support.additions import needs
from tests.support.arms.evaluated_arms import evaluated
from tests.support.tiny_models import tiny_writer

pytestmark = needs("evaluation")


def test_a_model_with_an_encoder_answers(tmp_path):
    """FLAN-T5's kind of model, tiny and random, answers in the papers' three arms from its configuration."""
    arms = {"no_retrieval": {}, "single_step": {}, "multi_step": {}}
    rows = evaluated(tmp_path, arms=arms, strategy=",".join(arms), generator={"model": tiny_writer("t5")})
    for arm in arms:
        row, stored = rows[arm]
        assert (row["questions"], row["failed"]) == (1, 0), row["failures"]
        assert stored["answer"]
        assert min(stored["cost"]["prompt_tokens"], stored["cost"]["completion_tokens"]) > 0

"""What outcomes and kept answers store about an arm of a paper does not depend on where its class lies."""

import pytest

from ragbandit.additions.research_arms import ADDITION
from ragbandit.shared.types import Budget
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.outcome import made_by
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from tests.support.arms.arm_runs import made

#: arm -> digest of its prompts by default. An edit of a prompt changes it: then the arm is asked again for kept answers
PROMPTS = {
    "adaptive_note": "3d2f38633d32",
    "chain_of_note": "0d9d7630914e",
    "dragin": "4e05782e15da",
    "flare": "4e05782e15da",
    "react": "7c2e7bb60e52",
    "rq_rag": "fdfd5ff1e506",
    "seakr": "62599a5f7c6a",
    "self_rag": "59f646bc8299",
    "self_rag_trained": "2f8b89c0439c",
    "self_refine": "52bf0b1df737",
    "self_rerank": "5bffc1e919ba",
}


@pytest.mark.parametrize("name", ADDITION.arms)
def test_an_arm_is_stored_by_its_name_and_its_prompts(name):
    """The definition of an arm has its name instead of a module, and the digest that its prompts have always had."""
    stored = made_by(made(name), budget=Budget(), retriever=MemoryRetriever([]), generator=ScriptedGenerator([]))
    assert (stored["arm"], stored["templates"]) == (name, PROMPTS[name])

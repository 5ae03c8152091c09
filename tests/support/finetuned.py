"""The fine-tuned policy of the core on a tiny model, and a row of a table."""

from ragbandit.router.policies.algorithms.mba_paper import MbaPaper
from ragbandit.router.policies.base import pmf_of_one
from ragbandit.shared.types import Query, TableRow
from ragbandit.testing.policies import ARMS
from tests.support.tiny_models import tiny_encoder

READING = {"model": tiny_encoder(), "max_tokens": 16, "device": "cpu", "threads": 1}


def mba(**params):
    return MbaPaper(**READING | params)


def output_of(policy, text="who wrote dracula ?", arms=ARMS):
    return pmf_of_one(policy, Query(text=text), features=None, arms=arms)


def row(number, question, right, *, hops=None, steps=(0.0, 1.0, 4.5)):
    """A table's row; right: the arms that answered right."""
    return TableRow(
        id=str(number),
        question=question,
        correct={arm: float(arm in right) for arm in ARMS},
        steps=dict(zip(ARMS, steps, strict=True)),
        hops=hops,
    )

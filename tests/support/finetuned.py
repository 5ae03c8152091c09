"""The fine-tuned policies on tiny models, and tables of questions to train them on."""

import numpy as np

from ragbandit.router.policies.algorithms.classifiers import AdaptiveRag, MultiLabel
from ragbandit.router.policies.algorithms.mba_paper import MbaPaper
from ragbandit.router.policies.base import pmf_of_one
from ragbandit.shared.types import Query, TableRow
from ragbandit.testing.policies import ARMS
from tests.support.tiny_models import tiny_encoder

READING = {"model": tiny_encoder(), "max_tokens": 16, "device": "cpu", "threads": 1}


def mba(**params):
    return MbaPaper(**READING | params)


def adaptive(**params):
    return AdaptiveRag(**READING | {"epochs": 2, "batch": 4, "learning_rate": 1e-3} | params)


def multi(**params):
    fast = {"epochs": 2, "batch": 4, "learning_rate": 1e-3, "choice": "cheapest"}
    return MultiLabel(**READING | fast | params)


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


def rows_by_word(count=40):
    """Questions where "who" needs no retrieval and "when" needs many steps; the rest is chance."""
    random = np.random.default_rng(5)
    found = []
    for number in range(count):
        rest = " ".join(random.choice(["dracula", "born", "city", "river", "film"], size=3))
        easy = number % 2 == 0
        found.append(row(number, f"{'who' if easy else 'when'} {rest} ?", ARMS if easy else ARMS[2:]))
    return found

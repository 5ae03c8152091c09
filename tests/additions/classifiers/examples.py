"""The classifiers on tiny models, and a table of questions to train them on."""

import numpy as np

from ragbandit.additions.classifiers.policies import AdaptiveRag, MultiLabel
from ragbandit.testing.policies import ARMS
from tests.support.finetuned import READING, row


def adaptive(**params):
    return AdaptiveRag(**READING | {"epochs": 2, "batch": 4, "learning_rate": 1e-3} | params)


def multi(**params):
    fast = {"epochs": 2, "batch": 4, "learning_rate": 1e-3, "choice": "cheapest"}
    return MultiLabel(**READING | fast | params)


def rows_by_word(count=40):
    """Questions where "who" needs no retrieval and "when" needs many steps; the rest is chance."""
    random = np.random.default_rng(5)
    found = []
    for number in range(count):
        rest = " ".join(random.choice(["dracula", "born", "city", "river", "film"], size=3))
        easy = number % 2 == 0
        found.append(row(number, f"{'who' if easy else 'when'} {rest} ?", ARMS if easy else ARMS[2:]))
    return found

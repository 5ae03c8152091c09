"""The numbers of the confusion matrix of `ragbandit policy train`."""

from collections import Counter

import pytest

from ragbandit.testing.policies import ARMS


def counts_of(rows, *, chosen):
    """Independent counts: (cheapest right arm, or "none right"; chosen arm) -> number of rows."""
    counts = Counter()
    for row in rows:
        right = sorted((row.steps[arm], ARMS.index(arm), arm) for arm in ARMS if row.correct[arm] >= 0.5)
        counts[right[0][2] if right else "none right", chosen(row)] += 1
    return counts


def counts_in(confusion):
    """The same numbers, from a printed confusion matrix."""
    shares = {
        (label, arm): row["questions"] * share
        for label, row in confusion["labels"].items()
        for arm, share in row["chosen"].items()
    }
    return {pair: pytest.approx(count) for pair, count in shares.items() if count}

"""The table of `evaluate`."""

import pytest

from ragbandit.workers.evaluation.results import Mean, _cell, _dollar_digits


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        (0.0000123, 0.0000031, "0.0000123 ± 0.0000031"),
        (0.0123, 0.0004, "0.01230 ± 0.00040"),
        (1.5, 0.25, "1.50 ± 0.25"),
        (0.0000123, None, "0.0000123"),
        (250.0, 30.0, "250.00 ± 30.00"),
        (0.0, 0.0, "0.00 ± 0.00"),
    ],
)
def test_dollars_keep_their_significant_digits(value, error, said):
    """Prices far below a cent show two digits of their standard error, not zeros."""
    mean = Mean(value=value, error=error)
    assert _cell(mean, digits=_dollar_digits(mean)) == said

"""The table of a safe start: a row for each way to begin, in the units of `simulate`."""

import pytest
from rich.console import Console

from benchmarks.simulation import Way, print_starts, starts
from ragbandit.router.encoders.base import HashingEncoder
from ragbandit.router.offline.logs.tables import LabelledTable
from ragbandit.shared.types import TableRow

ARMS = ("low", "single_step")


def made_table(count=300):
    """`single_step` is right on three questions of four, `low` on the other one; each costs a step."""
    rows = tuple(
        TableRow(
            id=f"q{n}",
            question=f"{n}?",
            correct={"low": float(n % 4 == 0), "single_step": float(n % 4 != 0)},
            steps={"low": 1.0, "single_step": 1.0},
        )
        for n in range(count)
    )
    return LabelledTable(rows=rows, arms=ARMS)


def test_rows(tmp_path, monkeypatch, capsys):
    """Uniform falls behind, a protected policy stays within the harm, and the baselines are those of the table."""
    monkeypatch.setattr("benchmarks.simulation.DATA", tmp_path)
    ways = (
        Way(name="uniform", policy="uniform"),
        Way(name="uniform, protected", policy="uniform", protected=True),
        Way(name="mba, warm", policy="mba", warm=40),
        Way(name="not there", policy="nowhere"),
    )
    found = starts(made_table(), ways=ways, seeds=2, folds=3, encoder=lambda: HashingEncoder(8))
    assert [one.name for one in found] == [
        *("uniform", "uniform, protected", "mba, warm", "always low", "always single_step"),
        "best arm of each question",
    ]
    uniform, held, _, low, incumbent, best = found
    assert uniform.reward == pytest.approx((low.reward + incumbent.reward) / 2, abs=0.05)
    assert (uniform.break_even, uniform.harmed) == (None, 1.0)
    assert held.worst > uniform.worst
    assert held.harmed == 0.0
    assert (low.reward, incumbent.reward, best.reward) == pytest.approx((0.2, 0.7, 0.95), abs=0.02)
    print_starts(found, console=Console(width=150), title="a table")
    assert "break-even" in capsys.readouterr().out

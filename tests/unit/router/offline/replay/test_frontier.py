"""The frontier of a log: on made worlds whose truth is known, within its intervals; the prices stand on it."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.same_policy import ARMS, Shape, lived
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.logs import write_rows
from ragbandit.router.offline.replay.prepare import price_frontier
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.formats import number
from ragbandit.workers.cli import app

SETTINGS = Settings.model_validate({"cost_weights": {"economy": 0.4, "quality": 0.01, "same": 0.05}})


@cache
def found(seed=0):
    log = lived(SETTINGS, seed=seed, shape=Shape(questions=80, passes=3)).log
    return log, price_frontier(log, settings=SETTINGS, folds=2)


def test_the_frontier():
    """Cost falls with the weight, each price stands at its weight, arms cost what they cost, within the intervals."""
    log, frontier = found()
    priced, arms = frontier[0].candidates[: -len(ARMS)], frontier[0].candidates[-len(ARMS) :]
    named = [point.name for point in priced if " " in point.name]
    assert named == [
        "0.01 quality",
        "0.05 reward.weight same",
        f"{number(frontier[1].proposed)} proposed",
        "0.4 economy",
    ]
    costs = [point.cost.value for point in priced]
    assert all(before >= after - 0.02 for before, after in pairwise(costs))
    assert costs[0] > costs[-1] + 0.8
    for steps, (arm, point) in enumerate(zip(ARMS, arms, strict=True)):
        assert point.name == f"always {arm}"
        assert point.cost.low - 1e-9 <= steps <= point.cost.high + 1e-9
    qualities = [row.reward.quality for row in log.rows]
    assert max(point.quality.value for point in priced) > np.mean(qualities) - 0.05


def test_what_has_no_frontier():
    """A policy with one price for all questions, and a log whose rewards came whole, are refused by name."""
    log, _ = found()
    uniform = Settings.model_validate({"policy": {"name": "uniform"}})
    with pytest.raises(InvalidInput, match="uniform has one weight of cost"):
        price_frontier(log, settings=uniform)
    whole = replace(log, rows=[replace(row, reward=replace(row.reward, preset="reward")) for row in log.rows])
    with pytest.raises(InvalidInput, match="apart"):
        price_frontier(whole, settings=SETTINGS)


def test_the_verb(tmp_path, monkeypatch):
    """The table has every price; the words say what the weight is worth and propose one."""
    monkeypatch.chdir(tmp_path)
    log, _ = found()
    write_rows("log.jsonl", log.rows)
    (tmp_path / "config.yaml").write_text("cost_weights: {economy: 0.4}\n")
    done = CliRunner().invoke(app, ["price", "--log", "log.jsonl", "--folds", "2"])
    assert done.exit_code == 0, done.output
    for words in ("economy", "reward.weight", "proposed", "always multi_step", "half the slope", "routing table"):
        assert words in done.stdout

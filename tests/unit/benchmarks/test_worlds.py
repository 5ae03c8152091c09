"""The board of worlds: worlds with known truth, labels under conditions, figures and their errors."""

import json

import numpy as np
import pytest

from benchmarks.worlds.__main__ import main
from benchmarks.worlds.made import WORLDS, made_world
from benchmarks.worlds.measures import possible_gain
from benchmarks.worlds.passes import COLD, DEAREST, Conditions, Task, World, cut, passed
from ragbandit.router.encoders.base import HashingEncoder


def world(name="needle", *, rows=300, weight=0.05):
    table, _ = made_world(name, rows=rows)
    encoder = HashingEncoder(32)
    features = encoder.encode([row.question for row in table.rows])
    schema = WORLDS[name].context
    return World(name=name, table=table, weight=weight, context=schema, features=features, encoder_hash=encoder.hash)


def task(policy="uniform", *, mode=COLD, seed=0, **conditions):
    return Task(world="needle", policy=policy, mode=mode, seed=seed, conditions=Conditions(**conditions))


# ------------------------------------------------------------------------------------------------------------- worlds


def test_truth_of_the_made_worlds():
    """What can be gained over the best fixed arm is much where worlds have kinds, and nothing in the others."""
    gains = {}
    for name in WORLDS:
        table, chances = made_world(name)
        worth = chances - 0.05 * table.steps
        gains[name] = worth.max(axis=1).mean() - worth.mean(axis=0).max()
    assert {name for name, gain in gains.items() if gain > 0.02} == {"needle", "two kinds", "stuck", "dear incumbent"}
    assert all(gains[name] < 1e-9 for name in ("null", "one best", "cheap equal"))


def test_full_information_finds_the_kinds():
    """Ridge and neighbours gain most of what can be known in a world of two kinds, and nothing in one of one."""
    assert possible_gain(world("two kinds", rows=600)) > 0.03
    assert possible_gain(world("cheap equal", rows=600)) < 0.005


# ------------------------------------------------------------------------------------------------------------- passes


def test_passes_ask_four_fifths_and_judge_on_the_rest():
    """A pass and its evaluation use disjoint rows of the table, the same ones for every policy."""
    there = world()
    asked, rest = cut(there, seed=3)
    played = [passed(task(policy, seed=3), world=there) for policy in ("uniform", "mba")]
    assert (len(asked), len(rest)) == (240, 60)
    for one in played:
        assert set(one.order) == set(asked)
        assert set(one.test) == set(rest)
        assert one.earned == pytest.approx(there.rewards[one.order, one.drawn])
    assert list(played[0].order) == list(played[1].order)


def test_labels_come_late_wrong_or_for_one_arm():
    """All labels come in the end; wrong ones mislead the greedy choice; a favoured arm has most labels."""
    there = world("cheap equal")
    everything, late, few = (passed(task("mba", **more), world=there) for more in ({}, {"late": 50}, {"labelled": 0.3}))
    assert everything.labels == late.labels == 240
    assert list(everything.drawn[:50]) != list(late.drawn[:50])
    assert 45 < few.labels < 100
    right, wrong = (passed(task("linucb", wrong=share), world=world("one best")) for share in (0.0, 1.0))
    assert not np.array_equal(right.drawn, wrong.drawn)
    favoured, plain = (passed(task(favoured=which), world=there) for which in (DEAREST, ""))
    assert plain.labels == 240
    assert 120 < favoured.labels < 180


def test_an_incumbent_holds_a_pass_back():
    """With the most expensive arm as incumbent most questions go to it; a world in which this arm is best has no such
    mode.
    """
    there = world("cheap equal")
    cold, beside = (passed(task("mba", mode=mode, seed=1), world=there) for mode in (COLD, DEAREST))
    assert (beside.drawn == there.dearest).mean() > 0.5 > (cold.drawn == there.dearest).mean()
    assert there.has(DEAREST)
    assert not world("needle").has(DEAREST)


@pytest.mark.slow
def test_a_board_from_the_command(tmp_path, capsys):
    """One world, two policies: the tables and the JSON; processes change nothing."""
    file = tmp_path / "board.json"
    words = ["--tables", str(tmp_path), "--worlds", "needle", "--policies", "uniform,linucb", "--modes", "cold"]
    more = ["--labelled", "1,0.3", "--seeds", "1", "--encoder", "hashing", "--data", str(tmp_path), "--jobs", "1"]
    main([*words, *more, "--json", str(file)])
    printed = capsys.readouterr().out
    assert "| cold, 100 % labelled" in printed
    assert "| mean over the worlds" in printed
    result = json.loads(file.read_text())
    assert [(row["policy"], row["labelled"]) for row in result["rows"]] == [
        ("uniform", 1.0), ("linucb", 1.0), ("uniform", 0.3), ("linucb", 0.3),
    ]  # fmt: skip
    assert [row["labels"] for row in result["rows"]][:2] == [1200, 1200]
    assert result["rows"][2]["labels"] == result["rows"][3]["labels"] < 420
    assert result["worlds"][0]["truth"] > 0.02


@pytest.mark.parametrize(
    "words", [["--labelled", "0"], ["--modes", "warm"], ["--wrong", "2"], ["--seeds", "0"], ["--worlds", "nowhere"]]
)
def test_what_cannot_be_played_is_refused(words, tmp_path):
    """Before anything is played."""
    with pytest.raises(SystemExit) as ended:
        main([*words, "--encoder", "hashing", "--data", str(tmp_path), "--tables", str(tmp_path)])
    assert ended.value.code == 2

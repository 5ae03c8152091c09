"""The board of worlds: worlds with known truth, labels under conditions, figures and their errors."""

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from benchmarks.worlds.board import Board
from benchmarks.worlds.made import WORLDS, long_questions, long_world, made_world
from benchmarks.worlds.measures import blocks_of, measured, possible_gain
from benchmarks.worlds.passes import COLD, Conditions, Judged, Task, World, cut, passed
from benchmarks.worlds.report import print_board, upper_bound
from ragbandit.router.encoders.hashing import HashingEncoder
from ragbandit.router.offline.logs.tables import LabelledTable
from ragbandit.router.offline.passes import Learning


def world(name="needle", *, rows=300, weight=0.05):
    table, _ = made_world(name, rows=rows)
    encoder = HashingEncoder(32)
    features = encoder.encode([row.question for row in table.rows])
    schema = WORLDS[name].context
    return World(name=name, table=table, weight=weight, context=schema, features=features, encoder_hash=encoder.hash)


def task(policy="uniform", *, mode=COLD, seed=0, **conditions):
    return Task(world="needle", policy=policy, mode=mode, seed=seed, conditions=Conditions(**conditions))


def long(name="similar 7", **chances):
    """A long world; chances: of its arms, if it shall have these, and 50 questions."""
    encoder = HashingEncoder(64)
    features = encoder.encode(list(long_questions()))
    table = long_world(name, features=features)
    if chances:
        rows = [replace(row, correct=chances, steps=dict.fromkeys(chances, 1.0)) for row in table.rows[:50]]
        table, features = LabelledTable(rows=tuple(rows), arms=tuple(chances)), features[:50]
    given = {"weight": 0.05, "features": features, "encoder_hash": encoder.hash, "chances": table.correct}
    return World(name=name, table=table, repeats=True, **given)


@pytest.mark.parametrize(("name", "spread"), [("similar 7", 0.04), ("similar 26", 0.08), ("different 26", 0.45)])
def test_truth_of_the_long_worlds(name, spread):
    """Similar arms earn alike and different ones do not; a linear regression on the features finds the best choice."""
    there = long(name)
    means, inputs = there.worth.mean(axis=0), np.hstack([np.ones((len(there.worth), 1)), there.features])
    chosen = (inputs @ np.linalg.lstsq(inputs, there.worth, rcond=None)[0]).argmax(axis=1)
    earned = there.worth[np.arange(len(chosen)), chosen].mean() - means.max()
    assert spread / 2 < np.ptp(means) < spread * 2
    assert possible_gain(there) == there.truth > 0.012
    assert there.truth - 0.002 < earned <= there.truth


def test_a_long_pass_repeats_questions_and_draws_their_outcomes(monkeypatch):
    """Each time that a question comes, an arm is right with its chance; warm outcomes are drawn too."""
    learned = []
    monkeypatch.setattr(Learning, "learn", lambda _, decision, reward: learned.append((decision, reward)) or True)
    played = passed(task(questions=2000, warm=200), world=long(poor=0.2, good=0.7))
    assert (len(played.order), len(set(played.order))) == (1800, 40)
    assert len({decision.id for decision, _ in learned[400:]}) == 1800
    for rows in (learned[:400], learned[400:]):
        for arm, chance in {"poor": 0.2, "good": 0.7}.items():
            right = [reward.quality for decision, reward in rows if decision.arm == arm]
            assert set(right) == {0.0, 1.0}
            assert abs(np.mean(right) - chance) < 4.0 * np.sqrt(chance * (1.0 - chance) / len(right))


def test_blocks_of_a_long_pass(capsys):
    """A pass that takes a poor arm for 1,000 questions and then the good one loses in the first block only."""
    assert blocks_of(1200) == []
    assert [end for _, _, end in blocks_of(100_000)] == [1000, 3000, 10_000, 30_000, 100_000]
    there, order, drawn = long(poor=0.2, good=0.7), np.arange(1500) % 40, np.arange(1500) // 1000
    after = {"test": np.arange(40, 50), "shares": np.full((10, 2), 0.5)}
    one = Judged(order=order, drawn=drawn, earned=0.15 + 0.5 * drawn, **after)
    rows = [measured(there, task=task("mba", questions=1500), passes=[one], possible=0.0)]
    more = {"possible": {there.name: 0.0}, "policies": ["mba"], "seeds": 1, "conditions": Conditions(questions=1500)}
    print_board(Board(worlds=[there], rows=rows, **more), console=Console())
    printed = capsys.readouterr().out
    for title in ("less the best fixed arm", "less the best choice"):
        head, *lines = printed.split(title)[1].splitlines()
        assert [cell.strip() for cell in head.split("|")[2:6]] == ["1-1000", "1001-1500", "whole pass", "after"]
        assert [cell.split()[0] for cell in lines[1].split("|")[3:7]] == ["-500", "+0", "-333", "-250"]


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


def test_late_and_few_labels():
    """Late labels all come in the end and change what is drawn; a share of labels is a share of the decisions."""
    everything, late, few = (
        passed(task("mba", **more), world=world("cheap equal")) for more in ({}, {"late": 50}, {"labelled": 0.3})
    )
    assert everything.labels == late.labels == 240
    assert list(everything.drawn[:50]) != list(late.drawn[:50])
    assert 45 < few.labels < 100


def test_share_of_the_lead(capsys):
    """A cold pass that half of the time takes the best arm earns half of its lead over the most expensive arm."""
    there = world("cheap equal")
    order = np.arange(100)
    drawn = np.where(order % 2 == 0, there.best, there.dearest)
    after = {"test": np.arange(100, 300), "shares": np.full((200, 2), 0.5)}
    one = Judged(order=order, drawn=drawn, earned=there.rewards[order, drawn], **after)
    row = measured(there, task=task("mba"), passes=[one], possible=0.0)
    lead = (there.rewards[:, there.best] - there.rewards[:, there.dearest])[order[::2]].sum() / 100
    assert row.above_dearest.value == pytest.approx(lead)
    more = {"possible": {there.name: 0.0}, "policies": ["mba"], "seeds": 1, "conditions": Conditions()}
    print_board(Board(worlds=[there], rows=[row], **more), console=Console())
    assert f"{row.above_dearest.value / row.lead:.2f} ± " in capsys.readouterr().out


def test_upper_bound_of_broken_promises():
    """Without a broken one it is 3 / n in about, the rule of three; one broken of 480 is at most one in a hundred."""
    assert upper_bound(0, of=300) == pytest.approx(1.0 - 0.05 ** (1 / 300))
    assert 0.009 < upper_bound(1, of=480) < 0.01

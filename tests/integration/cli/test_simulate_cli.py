"""`ragbandit simulate` from outside, over processes, and against a live service."""

import json
import multiprocessing
import random

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import HashingEncoder, embedded
from ragbandit.router.offline.logs.tables import read_table
from ragbandit.router.offline.simulation import simulate
from ragbandit.router.offline.simulation.run import Learning, SimulationData, SimulationRun, decision_id, split_of
from ragbandit.router.serving.checks.reports import made_outcome
from tests.support import command
from tests.support.logs.log_rows import write_json

ARMS = ("no_retrieval", "single_step", "multi_step")
HASHING = "encoder: {model: hashing, dimension: 16}\n"


def made_rows(count, *, seed=0):
    """Rows as a table's lines have them; the first word tells the right arm, mostly."""
    rng = random.Random(seed)
    for number in range(count):
        kind = number % 3
        right = [rng.random() < (0.9 if k == kind else 0.2) for k in range(3)]
        yield {
            "id": f"q{number}",
            "question": f"{('who', 'where', 'why')[kind]} {rng.choice('abcdefgh')} {number}?",
            "dataset": ("nq", "musique")[number % 2],
            "correct": dict(zip(ARMS, map(int, right), strict=True)),
            "steps": {"no_retrieval": 0, "single_step": 1, "multi_step": rng.choice([2, 3.5, 5])},
        }


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs `simulate` in a folder with a table and a configuration with the hashing encoder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(HASHING)
    write_json(tmp_path / "table.jsonl", made_rows(45))

    def call(*words):
        return command.run("simulate", "--table", "table.jsonl", "--jobs", "1", *words)

    return call


# ------------------------------------------------------------------------------------------- the same code as live


@pytest.mark.parametrize(("name", "params"), [("mba", {"ridge": 3.0}), ("linucb", {})])
def test_learns_what_a_live_service_learns(make_world, tmp_path, name, params):
    """A Router and a Learner on SQLite, fed the same questions and ratings, decide alike and end at the same sha256."""
    table = read_table(write_json(tmp_path / "table.jsonl", made_rows(24)))
    live = make_world(policy={"name": name, "params": params}, reward={"weight": 0.04})
    live.router.service.secret = None  # a simulation has no store, so its seeds are computed from the ids only
    encoder = live.router.service.encoder
    world = SimulationData(
        table=table,
        judged=table,
        folds=3,
        settings=Settings(reward={"weight": 0.9}),
        features=embedded([row.question for row in table.rows], encoder=encoder, data_dir=tmp_path),
        encoder_hash=encoder.hash,
    )
    learning = Learning(SimulationRun(policy=name, params=params, weight=0.04, seed=3, fold=1), world=world)
    for place in split_of(world, seed=3, fold=1)[0]:
        row = table.rows[place]
        there = live.route(row.question, key=decision_id(row, seed=3, fold=1))
        steps = row.steps[there.arm]
        live.store.add_outcome(made_outcome(decision_id=there.id, now=live.now, status="answered", steps=steps))
        live.feedback(there, rating=row.correct[there.arm])
        assert live.learn() == 1
        here = learning.step(int(place))
        for key in ("arm", "arms", "pmf", "propensity", "scores", "facts", "seed", "explored", "fault"):
            assert getattr(here, key) == getattr(there, key), key
    assert (learning.seq, learning.faults, learning.refused) == (16, 0, 0)
    mine = live.sha256(learning.policy)
    assert mine == live.sha256(live.replayed()) == live.sha256(live.learner().policy)
    assert live.router.verify(deep=True).ok


def test_processes_change_nothing(tmp_path):
    """All numbers except times are the same with one process and with two."""
    table = read_table(write_json(tmp_path / "table.jsonl", made_rows(24)))
    found = [
        simulate(
            table,
            policies={"mba": {}, "uniform": {}},
            folds=2,
            seeds=2,
            weights=[0.02, 0.1],
            settings=Settings(data_dir=str(tmp_path)),
            encoder=lambda: HashingEncoder(16),
            jobs=jobs,
        )
        for jobs in (1, 2)
    ]
    assert found[0] == found[1]
    assert not multiprocessing.active_children()


# -------------------------------------------------------------------------------------------------- the command


def test_json_has_every_key(run):
    """`--json` prints a list of rows with the promised keys; the baselines are always there."""
    done = run("--policy", "mba,uniform", "--folds", "2", "--seeds", "2", "--lambda", "0.01,0.05", "--json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    for row in rows:
        assert set(row) >= {
            *("policy", "lambda", "em", "em_se", "steps", "above_line", "above_line_se", "arms", "oracle_share"),
            *("first_pass", "confusion"),
        }
        assert set(row["arms"]) == set(ARMS)
        assert sum(row["arms"].values()) == pytest.approx(1.0)
    learned = [(row["policy"], row["lambda"]) for row in rows if row["seeds"]]
    assert learned == [("mba", 0.01), ("mba", 0.05), ("uniform", 0.01), ("uniform", 0.05)]
    plain = [row["policy"] for row in rows if not row["seeds"]]
    assert plain == [*(f"always-{arm}" for arm in ARMS), "line", "oracle", "oracle-by-reward", "oracle-by-reward"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--policy", "fixed"], "policy.params.arm"),
        (["--policy", "uniform", "--lambda", "x"], "lambda"),
        (["--policy", "uniform", "--param", "uniform"], "param"),
        (["--policy", "mba", "--param", "mba.ridge=[1"], "param"),
        (["--policy", "uniform", "--test", "table.jsonl", "--folds", "3"], "folds"),
        (["--policy", "uniform", "--test", "missing.jsonl"], "missing.jsonl"),
        (["--policy", "uniform", "--report", "missing/a.html"], "report"),
    ],
)
def test_wrong_words_end_the_command(run, tmp_path, words, named):
    """A wrong option ends with exit code 2 and one line that names it, before anything is learned or written."""
    done = run(*words)
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.strip().splitlines()
    assert f" {named}" in line
    assert not (tmp_path / ".ragbandit").exists()

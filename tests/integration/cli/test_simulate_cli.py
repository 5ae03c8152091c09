"""`ragbandit simulate` from outside, over processes, and against a live service."""

import contextlib
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ragbandit.router.cli import training as cli_offline
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import HashingEncoder, embedded
from ragbandit.router.offline.logs.tables import read_table
from ragbandit.router.offline.processes import process_executor
from ragbandit.router.offline.simulation import simulate
from ragbandit.router.offline.simulation.run import (
    Learning,
    SimulationData,
    SimulationRun,
    decision_id,
    played,
    split_of,
)
from ragbandit.router.serving.checks.reports import made_outcome
from ragbandit.shared.errors import ConfigError, RagBanditError
from ragbandit.workers.cli import app
from tests.support.waiting import until

ARMS = ("no_retrieval", "single_step", "multi_step")
FEW = ("--folds", "2", "--seeds", "2")
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


def write_table(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs `simulate` in a folder with a table and a configuration with the hashing encoder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(HASHING)
    write_table(tmp_path / "table.jsonl", made_rows(45))

    def call(*words):
        return CliRunner().invoke(app, ["simulate", "--table", "table.jsonl", "--jobs", "1", *words])

    return call


# ------------------------------------------------------------------------------------------- the same code as live


@pytest.mark.parametrize(("name", "params"), [("mba", {"ridge": 3.0}), ("linucb", {})])
def test_learns_what_a_live_service_learns(make_world, tmp_path, name, params):
    """A Router and a Learner on SQLite, fed the same questions and ratings, decide alike and end at the same sha256."""
    table = read_table(write_table(tmp_path / "table.jsonl", made_rows(24)))
    live = make_world(policy={"name": name, "params": params}, reward={"weight": 0.04})
    live.router.service.secret = None  # a simulation has no store: its seeds are made of the ids alone
    encoder = live.router.service.encoder
    world = SimulationData(
        table=table,
        test=None,
        folds=3,
        settings=Settings(reward={"weight": 0.9}),
        features=embedded([row.question for row in table.rows], encoder=encoder, folder=tmp_path / "cache"),
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
    """With one process or with two every number is the same, but for the clock's."""
    table = read_table(write_table(tmp_path / "table.jsonl", made_rows(24)))
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


def test_error_in_a_process_ends_them_all(tmp_path):
    """An error of ours in a process of the pool is raised here as it was, and no process is left."""
    table = read_table(write_table(tmp_path / "table.jsonl", made_rows(9)))
    world = SimulationData(table=table, test=None, folds=3, settings=Settings())
    asked = [SimulationRun(policy="fixed", params={"arm": 3}, weight=0.1, seed=0, fold=fold) for fold in range(3)]
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        played(asked, world=world, jobs=2)
    assert caught.value.field == "policy.params.arm"
    assert not multiprocessing.active_children()


def test_process_that_dies_is_named():
    """A process that is killed ends the simulation with an error of ours, not with a hang."""
    died = pytest.raises(RagBanditError, match="a process of the pool died")
    with died as caught, process_executor(2) as pool:
        pool.submit(os._exit, 9).result(60)
    assert caught.value.field == "jobs"
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
            "first_pass",
        }
        assert set(row["arms"]) == set(ARMS)
        assert sum(row["arms"].values()) == pytest.approx(1.0)
    learned = [(row["policy"], row["lambda"]) for row in rows if row["seeds"]]
    assert learned == [("mba", 0.01), ("mba", 0.05), ("uniform", 0.01), ("uniform", 0.05)]
    plain = [row["policy"] for row in rows if not row["seeds"]]
    assert plain == [*(f"always-{arm}" for arm in ARMS), "line", "oracle", "oracle-by-reward", "oracle-by-reward"]


def test_table_names_every_row(run):
    """Without --json every policy and baseline has a line, no number cut off."""
    done = run("--policy", "mba", "--total", "100", *FEW)
    assert done.exit_code == 0, done.output
    for name in ("mba", "always-no_retrieval", "uniform", "line", "oracle", "oracle-by-reward"):
        assert name in done.stdout
    assert "EM in % of 100 questions, 45 of them judged" in done.stdout
    assert "…" not in done.stdout


def test_params_of_config_and_command(run, tmp_path):
    """The configured params hold for the configured policy; --param goes over them, and reaches the others."""
    (tmp_path / "config.yaml").write_text(HASHING + "policy: {name: mba, params: {ridge: 3.0, epsilon_min: 0.1}}\n")
    done = run("--policy", "mba,fixed", "--param", "fixed.arm=multi_step", "--param", "mba.ridge=7", "--json", *FEW)
    assert done.exit_code == 0, done.output
    params = {row["policy"]: row["params"] for row in json.loads(done.stdout)}
    assert params["mba"] == {"ridge": 7, "epsilon_min": 0.1}
    assert params["fixed"] == {"arm": "multi_step"}


def test_few_labels_are_told(run):
    """`--labelled` is in the JSON and in the notes as labels that were learned; a share out of range is refused."""
    words = ("--policy", "mba", *FEW)
    (row,) = [row for row in json.loads(run(*words, "--labelled", "0.3", "--json").stdout) if row["policy"] == "mba"]
    labels = row["first_pass"]["labels"]
    assert 1 <= labels <= 15
    assert f"labels learned a pass: mba {labels:.1f}" in run(*words, "--labelled", "0.3").stdout
    assert json.loads(run(*words, "--json").stdout)[0]["first_pass"]["labels"] == 22.5
    refused = run(*words, "--labelled", "1.5")
    assert refused.exit_code == 2
    assert "labelled" in refused.output
    assert "more than 0 and at most 1" in refused.output


def cells_of(printed, name):
    """Of the first table: header -> cell of the row of this policy."""
    lines = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in printed.splitlines()]
    header = next(cells for cells in lines if cells and cells[0] == "policy")
    return dict(zip(header, next(cells for cells in lines if cells and cells[0] == name), strict=True))


def test_table_has_each_number_in_its_cell(run, tmp_path, monkeypatch):
    """EM, steps, and shares of always one arm stand under their headings."""
    rows = [
        {**row, "correct": dict(zip(ARMS, right, strict=True)), "steps": dict(zip(ARMS, (0, 1, 3), strict=True))}
        for row, right in zip(made_rows(4), [(1, 1, 1), (0, 1, 1), (0, 0, 1), (0, 0, 0)], strict=True)
    ]
    write_table(tmp_path / "table.jsonl", rows)
    (tmp_path / "config.yaml").write_text(HASHING + "policy: {floor: 0.0, cold_start_floor: 0.0}\n")
    words = ("--param", "fixed.arm=multi_step", "--lambda", "0.1", "--folds", "2", "--seeds", "2")
    done = run("--policy", "fixed", *words)
    assert done.exit_code == 0, done.output
    found = cells_of(done.stdout, "fixed")
    assert (found["lambda"], found["EM"], found["steps"]) == ("0.1", "75.00 ± 0.00", "3.00")
    assert (found["above line"], found["arms %"]) == ("+0.00 ± 0.00", "0/0/100")
    plain = cells_of(done.stdout, "always-multi_step")
    assert (plain["EM"], plain["steps"]) == ("75.00", "3.00")


def test_progress_goes_to_stderr_alone(run, monkeypatch):
    """Bars are drawn on stderr, where that is a terminal; what is on stdout is the same with and without them."""
    words = ("--policy", "fixed", "--param", "fixed.arm=single_step", "--json", *FEW)
    quiet = run(*words)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    for one in (cli_offline.console, cli_offline.errors):
        monkeypatch.setattr(one, "is_interactive", True)  # a console looks for that when it is made
    done = run(*words)
    assert done.exit_code == 0, done.output
    assert "runs" in done.stderr
    assert json.loads(quiet.stdout) == json.loads(done.stdout)
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--policy", "fixed"], "policy.params.arm"),
        (["--policy", "uniform", "--lambda", "x"], "lambda"),
        (["--policy", "uniform", "--param", "uniform"], "param"),
        (["--policy", "mba", "--param", "mba.ridge=[1"], "param"),
        (["--policy", "uniform", "--test", "table.jsonl", "--folds", "3"], "folds"),
        (["--policy", "uniform", "--test", "missing.jsonl"], "missing.jsonl"),
        (["--policy", "uniform", "--plot", "missing/a.png"], "plot"),
    ],
)
def test_wrong_words_end_the_command(run, tmp_path, words, named):
    """A wrong option ends with exit code 2 and one line that names it, before anything is learned or written."""
    done = run(*words)
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.strip().splitlines()
    assert f" {named}" in line
    assert not (tmp_path / ".ragbandit").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_ctrl_c_ends_all_processes(tmp_path):
    """Ctrl-C while processes work ends the command and every one of them."""
    (tmp_path / "config.yaml").write_text(HASHING)
    write_table(tmp_path / "table.jsonl", made_rows(90))
    words = ["simulate", "--table", "table.jsonl", "--policy", "mba", "--seeds", "2000", "--jobs", "2"]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "ragbandit", *words],
            cwd=tmp_path,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        until(lambda: sum("spawn_main" in command for command in group_of(process.pid)) == 2)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(30) in (1, 130)
        until(lambda: not group_of(process.pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert "Traceback" not in (tmp_path / "said").read_text()


def group_of(leader):
    """Command lines of the processes of a session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append((folder / "cmdline").read_text().replace("\0", " "))
    return found

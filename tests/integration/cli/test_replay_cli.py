"""`ragbandit replay` from outside: on a store that a real router filled, and on files in every format."""

import json
import os
import random
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from ragbandit.router.cli.store import parse_time
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.logs import write_rows
from ragbandit.router.offline.logs.ledger_transfer import ledger_rows
from ragbandit.router.serving.checks.reports import make_feedback
from ragbandit.shared.types import DecisionId, Query
from tests.conftest import World
from tests.support import command
from tests.support.additions import needs
from tests.support.logs.log_rows import LEAST, plain_rows, with_extra, write_json
from tests.support.logs.replay_logs import close

ARMS = ("no_retrieval", "single_step", "multi_step")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs `replay` in a folder with a configuration of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump({"data_dir": str(tmp_path / "data"), "encoder": {"model": "hashing", "dimension": 8}})
    )
    return lambda *words: command.run("replay", *words)


def found(done, *, code=0):
    """The JSON of a command that ended with this code."""
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def refused(done, *said):
    """A command that ended with code 2 and these words, and without a traceback."""
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit)
    for word in said:
        assert word in done.stderr.replace("\n", " "), done.stderr


# --------------------------------------------------------------------------------------------------------- the store


@pytest.fixture(scope="module")
def filled(module_settings):
    """A store with 120 decisions of a live router, ten per hour, each with an outcome and a rating; learned twice.
    Returns its settings and the rewards of its ledger.
    """
    world = World(module_settings(policy={"name": "linucb", "floor": 0.1}, reward={"weight": 0.05}))
    chance = random.Random(0)
    for hour in range(12):
        asked = [Query(text=f"question {n} of {hour}", id=DecisionId(f"stored-{hour:02}-{n}")) for n in range(10)]
        decisions = [future.result(30) for future in [world.router.submit(query) for query in asked]]
        told = []
        for decision in decisions:
            world.outcome(decision)
            right = chance.random() < {"no_retrieval": 0.2, "single_step": 0.7, "multi_step": 0.5}[decision.arm]
            value = {"decision_id": decision.id, "settings": world.settings, "now": world.now, "rating": float(right)}
            told.append(world.router.submit_feedback(make_feedback(**value)))
        for future in told:
            future.result(30)
        world.now += 3600.0
        if hour % 6 == 5:
            world.learn()
    rewards = [row.reward.value for row in ledger_rows(world.ledger)]
    world.close()
    return SimpleNamespace(settings=world.settings, rewards=rewards)


@pytest.fixture
def store(filled, tmp_path, run):
    """The settings of a copy of that store, which is the configured one."""
    shutil.copytree(filled.settings.data_dir, tmp_path / "data")
    given = filled.settings.model_dump(mode="json", exclude_unset=True) | {"data_dir": str(tmp_path / "data")}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(given))
    return Settings.model_validate(given)


def test_the_policy_of_the_store_is_not_compared_with_itself(store, run):
    """The serving policy is the baseline of a candidate that learns; compared with itself there is no difference."""
    said = found(run("--policy", "linucb,fixed:single_step", "--json"))
    linucb, single, current = said["candidates"]
    assert (current["comparison"], said["plan"]["baseline"]) == (None, "linucb as it is now")
    assert (linucb["same_policy"], linucb["learned"]) == (True, "folds")
    assert (single["same_policy"], single["learned"]) == (False, None)
    now = "linucb as it is now"
    assert said["headline"][0] == f"linucb (learned from this log) and {now} are the same policy"
    assert "fixed:single_step is " in said["headline"][1]
    assert now in said["headline"][1]
    still = found(run("--policy", "fixed:single_step", "--json"))
    assert still["plan"]["baseline"] == "logged", "nothing is learned unless a candidate learns or it is asked for"
    refused(run("--policy", "linucb", "--baseline", "logged"), "is ahead of it", "use current")


def test_store(store, filled, run):
    """The configured store is replayed: its ledger by name, its rows, versions and values; candidates of every kind."""
    said = found(run("--policy", "fixed:single_step,uniform", "--json"))
    assert (said["log"], said["rows"]) == ("the ledger main", 120)
    assert (said["plan"]["weight"], said["plan"]["confidence"]) == (None, 0.95)
    assert [candidate["name"] for candidate in said["candidates"]] == ["fixed:single_step", "uniform"]
    assert said["baseline_reward"]["estimate"] == pytest.approx(np.mean(filled.rewards))
    assert said["faults"] == []
    single = said["candidates"][0]
    assert single["reward"]["low"] < 0.65 < single["reward"]["high"]


@pytest.mark.parametrize(
    "words",
    [
        ("replay", "--policy", "linucb,mba,fixed:single_step"),
        ("report", "--since", "2020-01-01", "--until", "2026-01-01", "--against", "single_step"),
    ],
    ids=["replay", "report"],
)
def test_another_processor_prints_the_same_numbers(store, run, tmp_path, other_processor, words):
    """Estimates and intervals are those of another processor up to rounding."""
    here = command.printed_in(tmp_path, *words, "--json")
    there = other_processor.call(command.printed_in, tmp_path, *words, "--json")
    close(json.loads(there), json.loads(here))


def test_a_sample_of_the_store(store, run):
    """Policies learn and are judged on at most --sample rows, the same in every run; each sentence names the sample."""
    said, again = (found(run("--policy", "linucb", "--sample", "90", "--json")) for _ in range(2))
    assert said == again
    assert (said["rows"], said["sampled_from"]) == (90, 120)
    assert said["headline"][0].endswith(" (on 90 of 120 rows, drawn by id)")
    for more in (("--sample", "120"), ("--sample", "0")):
        whole = found(run("--policy", "linucb", *more, "--json"))
        assert (whole["rows"], whole["sampled_from"]) == (120, None)
        assert "drawn by id" not in whole["headline"][0]
    plain = found(run("--policy", "fixed:single_step", "--sample", "90", "--json"))
    assert (plain["rows"], plain["sampled_from"]) == (120, None), "what does not learn is judged on all rows"
    refused(run("--policy", "linucb", "--sample", "-1"), "sample", "0 or more")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30m", 10_000_000 - 1800),
        ("12h", 10_000_000 - 43_200),
        ("7d", 10_000_000 - 604_800),
        ("1.5w", 10_000_000 - 907_200),
        ("1970-01-02", 86_400),
        ("1970-01-02T08:00", 115_200),
        ("1970-01-02T08:00:00+02:00", 108_000),
        (" 1970-01-02 ", 86_400),
    ],
)
def test_asked_time(text, seconds):
    """An age, a date, a time, in UTC unless it says otherwise."""
    assert parse_time(text, now=10_000_000.0) == seconds


# ---------------------------------------------------------------------------------------------------------- outputs


def candidate_rows(count=400, *, arms=ARMS):
    """Rows with a candidate's pmf in `new`."""
    return with_extra(plain_rows(count, arms=arms), "new", [[0.25, 0.25, 0.5]] * count)


def test_table(run, tmp_path):
    """The verdict comes first, on one screen; with --all the tables follow, and nothing is cut off."""
    write_rows("log.jsonl", candidate_rows())
    words = ("--log", "log.jsonl", "--policy", "column:new,fixed:multi_step", "--segment", "device")
    short = run(*words).stdout.splitlines()
    assert ("column:new is " in short[0], len(short) <= 24) == (True, True)
    done = run(*words, "--all")
    assert done.exit_code == 0, done.output
    for word in ("400 questions from log.jsonl", "by device", "mobile", "desk", "effective rows"):
        assert word in done.stdout
    assert "…" not in done.stdout


def test_report(run, tmp_path):
    """--report writes the page in addition to the output; a path that cannot be written is refused at once."""
    rows = candidate_rows(100)
    rows[4] = replace(rows[4], reward=replace(rows[4].reward, source="default", preset="default"))
    write_rows("log.jsonl", rows)
    done = run("--log", "log.jsonl", "--policy", "column:new", "--report", "page.html", "--json")
    assert found(done)["rows"] == 100
    page = (tmp_path / "page.html").read_text()
    assert "column:new" in page
    refused(run("--log", "log.jsonl", "--policy", "column:new", "--report", "no/such/page.html"))


def test_wrong_log(run):
    """A log whose draws contradict its pmfs gives exit code 2; the fault comes first, and the estimates are still
    shown.
    """
    rows = [LEAST | {"id": f"q{number}", "arm": ("fast", "deep")[number % 2]} for number in range(200)]
    write_json(Path("log.jsonl"), rows)  # half of them deep, where a fifth was to be expected
    words = ("--log", "log.jsonl", "--policy", "uniform")
    done = run(*words)
    assert done.exit_code == 2
    assert "this log is wrong, so that no number from it is reliable: " in done.stdout
    assert found(run(*words, "--json"), code=2)["faults"]


# ------------------------------------------------------------------------------------------------------------- files


def test_bad_rows(run, tmp_path):
    """Rows that cannot be used are refused with line, field and remedy; with --skip-bad the others go on, counted."""
    rows = [json.dumps(LEAST | {"id": f"q{n}", "pmf": [0.5, 0.5], "arm": ("fast", "deep")[n % 2]}) for n in range(30)]
    rows[4] = json.dumps(LEAST | {"id": "q4", "pmf": [0.5, 0.4]})
    rows[9] = "{"
    for line in range(11, 17):
        rows[line] = json.dumps(LEAST | {"id": f"q{line}", "reward": 7})
    (tmp_path / "log.jsonl").write_text("\n".join(rows))
    words = ("--log", "log.jsonl", "--policy", "uniform")
    refused(run(*words), "8 of 30 rows cannot be used: line 5 pmf sums to 0.9", "line 10", "and 1 more", "--skip-bad")
    said = found(run(*words, "--skip-bad", "--json"))
    assert (said["rows"], said["skipped_rows"]) == (22, 8)
    assert said["skipped"][0] == {
        "line": 5,
        "field": "pmf",
        "reason": "sums to 0.9, not 1",
        "remedy": "log the whole pmf",
    }
    assert "left out: 8 rows" in run(*words, "--skip-bad", "--all").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--policy", "best"), ("'best' is not a candidate", "linucb")),
        (("--policy", "uniform", "--since", "soon"), ("since", "7d")),
        (("--policy", "uniform", "--baseline", "linucb"), ("baseline", "use current, logged, or one of uniform")),
        pytest.param(
            ("--policy", "multi_label"),
            ("CONFIG_INVALID", "is not trained", "--param multi_label.trained=FOLDER)"),
            marks=needs("classifiers"),
        ),
        (("--policy", "linucb", "--param", "linucb.beta=3"), ("unknown parameter",)),
        (("--policy", "uniform", "--param", "linucb.alpha=1"), ("'linucb' is not among", "use one of uniform")),
        (
            ("--policy", "fixed:multi_step", "--param", "linucb.alpha=1"),
            ("'linucb' is not", "ask for that policy too: --policy linucb"),
        ),
        (("--param", "linucb.alpha=1"), ("'linucb' is not", "ask for that policy too: --policy linucb")),
        (("--label", "main"), ("label", "--label applies to the store, but --log reads a file")),
        (("--report", "r.pdf"), ("report", "name a .html file in an existing folder")),
    ],
)
def test_words_are_refused(run, words, said):
    """What the command cannot do it says in a line, with what it can."""
    write_rows("log.jsonl", candidate_rows(20))
    refused(run("--log", "log.jsonl", *words), *said)


def test_a_log_from_a_pipe_is_read_whole(run, tmp_path):
    """A log that comes from a pipe has all its rows: it is read several times, and a pipe gives them only once."""
    rows = [
        {"id": f"q{number}", "arms": ["a", "b"], "pmf": [0.5, 0.5], "arm": "ab"[number % 2], "reward": number % 2}
        for number in range(1500)
    ]
    file, pipe = write_json(tmp_path / "log.jsonl", rows), tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Thread(target=lambda: pipe.write_bytes(file.read_bytes()), daemon=True).start()
    words = ("--policy", "fixed:b", "--json")
    piped, read = (found(run("--log", path, *words)) for path in (pipe, file))
    assert piped == read | {"log": str(pipe)}


def test_a_fault_in_a_pipe_names_the_pipe(run, tmp_path):
    """An error about a log that came from a pipe names the pipe, and not a copy of it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Thread(target=lambda: pipe.write_text('{"id": 1'), daemon=True).start()
    refused(run("--log", pipe), f"{pipe}: ")


@pytest.mark.parametrize("log", ["logs", "logs/*"])
def test_a_pipe_among_files_is_refused(run, tmp_path, log):
    """A pipe in a folder of logs is refused by its name, since nobody may write into it."""
    (tmp_path / "logs").mkdir()
    os.mkfifo(tmp_path / "logs" / "a.parquet")
    refused(run("--log", log), "a.parquet: the file cannot be read", "it is a pipe, not a file")

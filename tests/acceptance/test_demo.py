"""The loop of the demo: with the real models, and for policies that need something prepared.

With the models DistilBERT decides, SmolLM2 answers, BM25 finds, the policy learns.
"""

import io
import itertools
import json
import os
import re
import sys
from itertools import pairwise

import pytest
import yaml
from rich.console import Console

from ragbandit.examples.handbook import recorded, strategies
from ragbandit.examples.handbook.command import HERE, TABLE, read_questions
from ragbandit.examples.handbook.fetching import missing_weights
from ragbandit.examples.handbook.report import show
from ragbandit.examples.handbook.side_by_side import KINDS, sampled
from ragbandit.router.config.loading import load
from ragbandit.router.offline.logs.tables import read_table
from ragbandit.shared.additions import arm_parts
from tests.support import command
from tests.support.additions import needs
from tests.support.arms.arm_runs import ARMS_HERE, made
from tests.support.forked import Forked


def scripted(folder, script):
    """A configuration of the handbook without models, whose answers are these."""
    tree = {
        "reward": {"quality": "containment"},
        "encoder": {"model": "hashing"},
        "generator": {"name": "scripted", "script": script},
        "retriever": {"index": "handbook"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))  # the first piece that matches wins
    return folder / "config.yaml"


#: the demo's verbs run in its process, which has imported them, and signs of life come soon. What a thread of the demo
#: prints meanwhile is no output of the verb
IN_PROCESS = """
import sys
from ragbandit.examples.handbook import demo
from ragbandit.router.cli import progress
from tests.support import command
progress.LINE_S = 0.2
demo.console.file = sys.stdout
demo.ragbandit = lambda arguments, *, environment: command.run(*arguments, env=environment).stdout
"""
#: a sign of life ends with the seconds so far
SIGN = re.compile(r"^(.*) \((\d+) s\)\n", re.MULTILINE)


def run_demo(data, *options, first=""):
    """A few questions of the demo; what it printed, and its report. first: code that its process runs before."""
    command = ["demo", "--limit", "8", "--seeds", "1", "--data", data, *options]
    log = data.with_name("demo.log")
    demo = Forked(command, environment=os.environ | {"HF_HUB_OFFLINE": "1"}, log=log, first=first)
    assert demo.wait(260) == 0, log.read_text()[-3000:]
    report = json.loads((data / "report.json").read_text())
    assert report["ok"]
    asked, before = sum(row["n"] for row in report["arms"].values()), report["warm"]["rows"]
    assert 4 <= asked <= 8
    assert (report["decided"], report["learned"], report["waiting"]) == (before + asked, before + asked - 3, 3)
    assert report["duplicates_recognised"] == report["duplicates_sent"] == asked - 3
    assert report["late_feedback"] == min(5, asked - 3)
    assert report["failed"] == 0
    return log.read_text(), report


@needs("advice")
@pytest.mark.timeout(280)
@pytest.mark.parametrize("models", [False, pytest.param(True, marks=[pytest.mark.models, pytest.mark.slow])])
def test_a_short_demo(tmp_path, models, monkeypatch):
    """A few questions of the demo are answered, judged, learned and verified, by a warm policy, on one page of text.

    With models it has the demo's settings and a sixth of the recorded table, and prints every table. Without models it
    prints what `make demo` prints. In a file every long step has signs of life.
    """
    monkeypatch.setenv("COLUMNS", "80")
    with TABLE.open(encoding="utf-8") as rows:
        (tmp_path / "table.jsonl").write_text("".join(itertools.islice(rows, 100)), encoding="utf-8")
    config = ["--detail"] if models else ["--config", str(scripted(tmp_path, {"": "So the answer is: eight."}))]
    options = ["--workers", "1", "--table", tmp_path / "table.jsonl", *config]
    printed, report = run_demo(tmp_path / "data", *options, first="" if models else IN_PROCESS)
    free, held = report["learning"]["free"], report["learning"]["held"]
    assert (free["questions"], free["seeds"], held and held["incumbent"]) == (100, 1, "single_step" if models else None)
    warm, asked = report["warm"], sum(row["n"] for row in report["arms"].values())
    assert (warm["rows"], len((tmp_path / "data" / "warm.jsonl").read_text("utf-8").splitlines())) == (
        3 * warm["questions"],
        warm["questions"],
    )
    assert 50 < warm["questions"] <= 100 - asked
    assert set(warm["gains"]) == {"no_retrieval", "single_step", "multi_step"}
    assert re.search(r" Learned: .*\. While learning: .*\. Not shown yet: .*\. ", " ".join(printed.split()))
    assert free["oracle"] > free["points"][-1]["reward"] > free["always"]["no_retrieval"]
    assert [path.name for path in (tmp_path / "data" / "logs").glob("answer-*")] == ["answer-1.log"]
    if models:
        assert f"After {free['questions'] - free['questions'] // 3} questions of feedback" in " ".join(printed.split())
    else:
        assert len(SIGN.sub("", printed).splitlines()) <= 25, printed
        steps = {step for step, _ in SIGN.findall(printed)}
        assert {
            f"the policy learns the recorded outcomes of {warm['questions']} questions",
            "starting the service",
        } <= steps
        assert [line[0] for line in printed.splitlines() if re.match(r"\d\. ", line)] == ["1", "2", "3"]
        seconds = [0, *(int(each) for _, each in SIGN.findall(printed))]
        assert all(later - earlier < 10 for earlier, later in pairwise(seconds))
        assert "computed again from the store: equal" in printed
        show(Console(file=io.StringIO()), report, file=tmp_path / "report.json")


@pytest.mark.timeout(280)
@pytest.mark.slow
def test_a_short_demo_of_another_policy(tmp_path):
    """A named policy is run, learned and verified without a warm start and a curve; here without models."""
    config = scripted(tmp_path, {"": "So the answer is: eight."})
    _, report = run_demo(tmp_path / "data", "--policy", "linucb", "--config", str(config))
    assert (report["policy"], report["learning"], report["warm"]["rows"]) == ("linucb", None, 0)


@pytest.fixture
def run_here(monkeypatch):
    """A function that runs a program of the handbook in this process, and its verbs too."""

    def verb(arguments, *, environment, **_):
        done = command.run(*arguments, env=environment)
        assert done.exit_code in {"advise": (0, 3, 4)}.get(arguments[0], (0,)), done.output
        return done.stdout

    def run(program, *options):
        monkeypatch.setattr(program, "ragbandit", verb)
        monkeypatch.setattr(sys, "argv", [program.__name__, *map(str, options)])
        program.main()

    return run


@pytest.mark.timeout(120)
def test_the_table_is_recorded(tmp_path, run_here):
    """`make handbook-table` writes a row per question and the facts of its making, and asks nothing a second time."""
    asked = read_questions()[:3]
    config = scripted(tmp_path, {row["question"]: f"So the answer is: {row['answers'][0]}." for row in asked})
    options = ["--limit", "3", "--out", tmp_path, "--data", tmp_path / "data", "--config", config]
    sizes = []
    for _ in range(2):
        run_here(recorded, *options)
        sizes.append((tmp_path / "data" / "table" / "answers.jsonl").stat().st_size)
    table, facts = read_table(tmp_path / "table.jsonl"), json.loads((tmp_path / "table.json").read_text("utf-8"))
    assert [(row.id, row.question) for row in table.rows] == [(row["id"], row["question"]) for row in asked]
    assert table.correct.all()
    assert sizes[0] == sizes[1]
    assert (facts["model"], facts["weights_sha256"]) == ("scripted", None)
    assert "--strategy no_retrieval,single_step,multi_step" in facts["command"]


@pytest.mark.timeout(120)
def test_all_arms_side_by_side(tmp_path, run_here, capsys):
    """Every arm that the model supports answers the same questions; the report names what the other arms lack."""
    asked = sampled(read_questions(), each=1, by="kind")
    known = next(row for row in asked if row["kind"] == "none")
    script = {known["question"]: f"So the answer is: {known['answers'][0]}.", "": "So the answer is: nobody knows."}
    config = scripted(tmp_path, script)
    run_here(strategies, "--each", "1", "--data", tmp_path, "--config", config)
    report = json.loads((tmp_path / "strategies.json").read_text())
    rows = {row["strategy"]: row for row in report["strategies"]}
    by_kind = {row["strategy"]: [row[kind] for kind in KINDS] for row in report["by_kind"]}
    lacking = {name: made(name).needs - {"completion", "stop"} for name in ARMS_HERE}
    assert {name for name, needed in lacking.items() if not needed} <= set(rows)
    no_strategies = {"callable", "http", "model", *arm_parts()}
    assert no_strategies | {name for name, needed in lacking.items() if needed} == set(report["left_out"])
    printed = capsys.readouterr().out
    for name, needed in lacking.items():
        assert not needed or f"left out: {name}: the generator lacks {', '.join(sorted(needed))}" in printed
    assert {row["questions"] for row in rows.values()} == {3}
    assert by_kind["no_retrieval"] == by_kind["oracle"] == [1.0, 0.0, 0.0]
    assert sum(report["policy"]["arms"].values()) == pytest.approx(1.0)
    assert len((tmp_path / "strategies" / "answers.jsonl").read_text().splitlines()) == 3 * len(rows)


def test_missing_weights_are_named(tmp_path, monkeypatch):
    """The demo names the weights that it fetches once, and none if they are on this disk or no model is used."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert missing_weights(load(HERE / "config.yaml", environ={}).settings) == ["the encoder", "a small language model"]
    assert missing_weights(load(scripted(tmp_path, {"": "eight."}), environ={}).settings) == []

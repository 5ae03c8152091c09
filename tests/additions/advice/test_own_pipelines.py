"""`advise` and `Router.advise` with functions of the user's own code."""

import asyncio
import json
import logging
import sys
from collections import Counter
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from ragbandit import advise
from ragbandit.additions.advice.question_file import question_file
from ragbandit.router.config.loading import load
from ragbandit.router.reporting.before_start import before_start
from ragbandit.router.serving.router import Router
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import Budget, Cost
from ragbandit.strategies.outcome import run_strategy
from ragbandit.strategies.retrievers.without_index import NoRetriever
from ragbandit.workers.judge.rubric import CRITERIA
from ragbandit.workers.setup.pipelines import load_pipelines
from tests.support import command
from tests.support.logs.log_rows import write_json

CONFIG = """
data_dir: data
encoder: {model: hashing, dimension: 64}
reward: {weight: 10, cost: {dollars: 1}}
arms: {small: {run_by: caller}, big: {run_by: caller}}
"""
#: `small` answers easy questions only; every call is noted in the file `calls`
CODE = """
from pathlib import Path

def noted(name, answer):
    with open("calls", "a") as file:
        file.write(name + "\\n")
    if Path("stop").exists() and Path("calls").read_text().count("\\n") > 60:
        raise KeyboardInterrupt
    return answer

def small(question):
    return noted("small", "yes" if question.startswith("easy") else ""), {"dollars": 0.001}

async def big(question):
    return noted("big", {"answer": "yes", "cost": {"dollars": 0.03}, "sources": [1]})

arms = {"small": small, "big": big}
broken = {"small": small, "big": lambda question: question[1000]}
free = {"small": lambda question: "yes", "big": lambda question: "no"}

def make():
    return arms
"""


#: where a test is about the outcomes, not the verdict: the policies are learned in two folds instead of five
FEW = ("--folds", "2")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with pipelines and 120 questions, half of them easy."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "own_code.py").write_text(CODE)
    kinds = ("easy", "hard")
    rows = ({"question": f"{kinds[n % 2]} {kinds[n % 2]} {n}?", "answers": ["yes"]} for n in range(120))
    write_json(tmp_path / "q.jsonl", rows)
    before = list(sys.path)
    sys.modules.pop("own_code", None)  # another file of tests has a module of this name, too
    yield tmp_path
    sys.path[:] = before
    sys.modules.pop("own_code", None)


def calls(folder):
    return Counter((folder / "calls").read_text().split())


def asked(*words, code=None):
    words = ("advise", "q.jsonl", "--module", "own_code:arms", "--json", *words)
    return json.loads(command.run(*words, code=code).stdout)


def test_functions_run_paired_and_resumable_and_their_rows_are_the_warm_start(folder):
    """`--module` runs the functions on the same questions, asks nothing twice, and `--apply` learns the outcomes."""
    said = asked(code=0)
    assert (said["verdict"], said["best"]) == ("route", "big")
    assert calls(folder) == {"small": said["answered"], "big": said["answered"]}
    assert said["dollars"] == pytest.approx(0.031 * said["answered"])
    before = calls(folder)
    done = command.run("advise", "q.jsonl", "--module", "own_code:make", "--apply", "--budget", "9", "--json", code=0)
    again = json.loads(done.stdout)
    assert calls(folder) == before
    assert "cost 0 dollars" not in done.stderr
    assert again["sentence"] == said["sentence"]
    assert again["added"] == 2 * said["answered"]
    assert_warm(again["last_seq"])


def assert_warm(last_seq):
    """The next router decides with what these updates taught, with and without the incumbent of the file."""
    settings = load(None).settings
    assert (settings.policy.incumbent, settings.policy.holdback.arm) == ("big", "big")
    bold = {"policy": settings.policy.model_copy(update={"incumbent": None, "holdback": None})}
    for chosen, floor in ((None, 0.04), (settings.model_copy(update=bold), 0.5)):
        with Router.open(chosen) as router:
            easy, hard = (router.route(f"{kind} {kind} 999?") for kind in ("easy", "hard"))
            assert easy.version.startswith(f"main-{last_seq}-")
            assert easy.pmf[easy.arms.index("small")] > floor > hard.pmf[hard.arms.index("small")]


def test_a_budget_and_ctrl_c_end_with_what_is_known(folder):
    """A run that is stopped judges the questions that every function has answered, and goes on where it stopped."""
    said = asked("--budget", "0.5", *FEW)
    assert "budget of 0.5 dollars" in said["ended"]
    assert 0.46 < said["dollars"] <= 0.5
    (folder / "stop").touch()
    stopped = asked(*FEW)
    assert stopped["ended"] == "Ctrl-C"
    assert said["answered"] < stopped["answered"] < 120
    (folder / "stop").unlink()
    assert asked(*FEW)["answered"] > stopped["answered"]
    done = command.run("advise", "q.jsonl", "--module", "own_code:arms", "--budget", "0.5", *FEW)
    assert "--budget ends nothing" not in done.output  # these answers were paid before


def test_a_judge_scores_questions_without_answers(folder):
    """Questions without right answers are scored by judge.generator; nothing that is stored is asked again."""
    scores = json.dumps({name: {"reason": "so", "score": 0.75} for name in CRITERIA})
    judge = {"generator": {"name": "scripted", "script": {"?": scores}}}
    (folder / "config.yaml").write_text(yaml.safe_dump(yaml.safe_load(CONFIG) | {"judge": judge}))
    write_json(folder / "q.jsonl", [{"question": f"easy {n}?"} for n in range(20)])
    said = asked("--folds", "2")
    assert said["answered"] == 20
    assert max(one["quality"]["second"] for one in said["comparisons"]) == pytest.approx(0.75)
    before = calls(folder)
    asked("--folds", "2")
    assert calls(folder) == before


def test_an_interrupted_apply_is_finished_by_the_next(folder, monkeypatch):
    """If the command dies before it replaces the file, repeating it learns nothing twice and leaves a warm policy."""

    def die(*_, **__):
        raise SystemExit(9)

    with monkeypatch.context() as patch:
        patch.setattr("ragbandit.router.learning.learner.Learner.prepare", die)
        command.run("advise", "q.jsonl", "--module", "own_code:arms", "--apply", *FEW, code=9)
    assert (folder / "config.yaml").read_text() == CONFIG
    assert [path.name for path in folder.glob(".new-*")] == []
    said = asked("--apply", *FEW, code=0)
    assert (said["added"], said["known"]) == (0, 2 * said["answered"])
    assert_warm(said["last_seq"])


def test_a_router_that_runs_decides_with_the_applied_outcomes(folder):
    """A running router follows to the learned policy and still learns; the file's change waits for its next start."""
    with Router.open() as running:
        said = asked("--apply", *FEW, code=0)
        running.refresh()
        decision = running.route("easy easy 999?")
        assert decision.version.startswith(f"main-{said['last_seq']}-")
        assert decision.pmf[decision.arms.index("small")] > 0.5
        running.outcome(decision.id, answer="yes", cost={"dollars": 0.001})
        running.feedback(decision.id, label=["yes"])
        assert running.learn() == 1
    (folder / "config.yaml").write_text(CONFIG)


@pytest.mark.parametrize(
    ("text", "environ", "said"),
    [
        (
            f"{CONFIG}...\n",
            {},
            "add to it: policy: {incumbent: big, holdback: {arm: big, share: 0.05, until: 166, then: 0.02}}",
        ),
        (CONFIG, {"RAGBANDIT_POLICY__INCUMBENT": "small"}, "not set: policy.holdback.arm: 'big' would keep its share"),
    ],
)
def test_what_cannot_be_written_is_said_with_the_lines(folder, monkeypatch, caplog, text, environ, said):
    """If the file is not changed, the output has the reason and the settings, and the outcomes are learned."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    (folder / "config.yaml").write_text(text)
    done = asked("--apply", code=0)
    assert said in done["incumbent"]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert (folder / "config.yaml").read_text() == text
    with Router.open() as router:
        assert router.route("easy easy 999?").version.startswith(f"main-{done['last_seq']}-")


def test_the_library_gives_the_same_verdict(folder):
    """`Router.advise` returns the verdict, also inside a running event loop, and its rows are learned."""
    questions = {json.loads(line)["question"]: "yes" for line in (folder / "q.jsonl").read_text().splitlines()}
    pipelines = {
        "small": lambda question: ("yes" if question.startswith("easy") else "no", 0.001),
        "big": lambda question: ("yes", Cost(dollars=0.03)),
    }

    async def inside():
        return advise(router, pipelines, questions, apply=True)

    with Router.open() as router:
        advice = asyncio.run(inside())
        assert advice.verdict == "route"
        learned = router.status().counters.learned
        assert learned >= 100
        decision = router.route("easy easy 999?")
        assert decision.version.startswith(f"main-{learned}-")
        assert decision.pmf[decision.arms.index("small")] > 0.5
        written = "policy.incumbent: big, with a holdback of 5 %, in config.yaml; restart a running service to use them"
        assert f"{written}; the holdback: until 166 of its answers are learned" in " ".join(advice.notes)
        kept = before_start(router.database, advice.comparisons[0], label="main", weight=router.settings.reward.weight)
        assert kept.startswith(f"Before the start, on {advice.questions} labelled questions: +")
        with pytest.raises(InvalidInput, match="only small to run"):
            advise(router, {"small": pipelines["small"]}, questions)
        with pytest.raises(InvalidInput, match="a mapping of names to functions"):
            advise(router, [pipelines["small"]], questions)
        with pytest.raises(InvalidInput, match="budget"):
            advise(router, pipelines, questions, budget=float("nan"))
        with pytest.raises(ConfigError, match="not a valid name of a pipeline"):
            advise(router, {"a b": len, "big": len}, questions)
    assert_warm(learned)


def test_questions_are_read_in_every_form(tmp_path):
    """Questions are a file, a mapping, rows, pairs, or texts without right answers, and are read by one reader."""
    gold = [{"question": "Who?", "answers": ["a"]}, {"question": "Where?", "answers": ["b", "c"]}]
    for given in ({"Who?": "a", "Where?": ("b", "c")}, gold, [("Who?", "a"), ["Where?", {"b": 1, "c": 1}]], iter(gold)):
        file = question_file(given, folder=tmp_path / "new")
        assert [json.loads(line) for line in file.read_text().splitlines()] == gold
    assert question_file(str(file), folder=tmp_path) == file
    assert question_file(["Who?"], folder=tmp_path).read_text() == '{"question":"Who?"}\n'


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "this command cannot run big and small, which your code runs (`ragbandit advise QUESTIONS.jsonl --module"),
        (("--arms", "big,small"), "cannot run big and small, which your code runs"),
        (("--module", "own_code:nothing"), "'own_code:nothing' cannot be imported"),
        (("--module", "own_code:small"), "is function; expected a mapping of names to functions"),
        (("--module", "own_code:arms", "--arms", "big"), "there is only big to run"),
        (("--module", "own_code:arms", "--arms", "big,smal"), "did you mean small?"),
    ],
)
def test_what_cannot_be_run_is_refused_with_its_remedy(folder, words, said):
    """Arms that callers run need their functions, and a wrong name is refused before anything is asked."""
    done = command.run("advise", "q.jsonl", *words, code=2)
    assert said in " ".join(done.output.split())
    assert not (folder / "calls").exists()
    assert "--module own_code:arms" in command.run("advise", "--module", "own_code:arms", code=2).output


def test_fewer_questions_than_folds_are_refused_before_an_answer_is_paid(folder):
    """Two questions cannot be cut in five folds, which is said before an arm is asked; two folds take them."""
    words = ("advise", "q.jsonl", "--module", "own_code:arms", "--limit", "2")
    refused = command.run(*words, code=2).stderr
    assert "q.jsonl: 2 different questions cannot be cut in 5 folds (give more questions, or fewer folds" in refused
    assert not (folder / "calls").exists()
    command.run(*words, "--folds", "2", code=4)
    assert calls(folder) == {"small": 2, "big": 2}


def test_arms_that_are_not_configured_are_judged_and_not_learned(folder):
    """A verdict needs no configuration; `--apply` without these arms is refused before anything is asked."""
    config = yaml.safe_load(CONFIG) | {"arms": {"other": {}, "more": {"class": "no_retrieval"}}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    done = command.run("advise", "q.jsonl", "--module", "own_code:arms", "--apply", code=2)
    assert "set arms: {small: {run_by: caller}, big: {run_by: caller}}" in " ".join(done.output.split())
    assert not (folder / "calls").exists()
    assert "route: " in command.run("advise", "q.jsonl", "--module", "own_code:arms", code=0).output


def test_faults_of_functions_are_named_while_they_run(folder):
    """The first failure of a function is printed with its reason, and answers that cost nothing are warned of."""
    done = command.run("advise", "q.jsonl", "--module", "own_code:broken", "--limit", "60")
    assert "big failed: IndexError: string index out of range" in " ".join(done.stderr.split())
    done = command.run("advise", "q.jsonl", "--module", "own_code:free", "--limit", "60", "--budget", "1")
    said = " ".join(done.stderr.split())
    assert "12 questions cost nothing by reward.cost (dollars): every arm looks free" in said
    assert "12 questions cost 0 dollars: --budget ends nothing" in said


def outcome_of(output, *, prices):
    (arm,) = load_pipelines({"own": lambda question: output}, prices=prices).values()
    query = SimpleNamespace(id="d1", text="?", messages=(), context={}, tenant="")
    run = run_strategy(arm.strategy, query=query, budget=Budget(), retriever=NoRetriever(), generator=arm.generator)
    return asyncio.run(run)


@pytest.mark.parametrize(
    ("output", "charged", "steps", "dollars"),
    [
        ("yes", "steps", 1, 0.0),
        (("yes", 4), "steps", 4, 0.0),
        (("yes", 0.25), "dollars", 1, 0.25),
        (("yes", Decimal("0.25")), "dollars", 1, 0.25),
        (("yes", {"steps": np.int64(2), "dollars": np.float32(0.25), "seconds_total": 9}), "dollars", 2, 0.25),
        (("yes", Cost(dollars=0.25, seconds_total=3.0)), "dollars", 1, 0.25),
        ({"answer": "yes", "steps": 3, "cost": 0.25, "passages": None}, "dollars", 3, 0.25),
        ({"answer": "yes", "dollars": 0.25, "trace": object()}, "steps", 1, 0.25),
        (SimpleNamespace(answer="yes", cost={"dollars": 0.25}), "steps", 1, 0.25),
        ({"output": "yes"}, "steps", 1, 0.0),
    ],
)
def test_costs_are_read_in_every_form(output, charged, steps, dollars):
    """A bare number counts what reward.cost charges; None is left out, and numbers of other packages are numbers."""
    outcome = outcome_of(output, prices={charged: 1.0})
    assert (outcome.status, outcome.answer, outcome.steps) == ("answered", "yes", steps)
    assert outcome.cost.dollars == pytest.approx(dollars)
    assert 0.0 < outcome.cost.seconds_total < 3.0


@pytest.mark.parametrize(
    ("output", "prices", "said"),
    [
        (None, {"steps": 1.0}, "the reply's answer is None"),
        (("yes", 3), {"steps": 1.0, "dollars": 1.0}, "cost in a unit is 3"),
        (("yes", {"dolars": 1}), {"dollars": 1.0}, "cost.dolars is 1"),
        (("yes", -0.5), {"dollars": 1.0}, "cost.dollars is -0.5"),
        (("yes", float("nan")), {"dollars": 1.0}, "cost.dollars is nan"),
        (("yes", True), {"steps": 1.0}, "steps is True"),
    ],
)
def test_a_cost_that_cannot_be_read_is_a_failure_with_its_field(output, prices, said):
    """A cost is never guessed: the failure names the field and the forms that can be read."""
    outcome = outcome_of(output, prices=prices)
    assert outcome.status == "failed"
    assert said in outcome.error
    assert 'return a text, (text, {"dollars": 0.004})' in outcome.error

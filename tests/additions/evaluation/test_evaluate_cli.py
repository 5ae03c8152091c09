"""`ragbandit evaluate` from outside, with a scripted model and a real index."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from ragbandit.additions.evaluation.kept_answers import AnswerFile, StoredAnswer
from ragbandit.additions.evaluation.kept_replies import ReplyCache
from ragbandit.router.config.loading import load
from ragbandit.router.offline.logs.tables import read_table
from ragbandit.shared.additions import arm_parts
from ragbandit.shared.errors import ArmFailed, InvalidInput
from ragbandit.shared.types import Cost
from ragbandit.strategies.retrievers.bm25 import build_index
from ragbandit.strategies.retrievers.corpus import read_corpus
from ragbandit.strategies.run import Answer
from ragbandit.workers.setup.retrievers import index_folder
from tests.support import command
from tests.support.logs.log_rows import write_json

CORPUS = [
    {"id": "jaws", "title": "Jaws", "text": "Jaws was made by Spielberg in 1975."},
    {"id": "ohio", "title": "Ohio", "text": "Ohio is a state. Its capital is Columbus."},
]
QUESTIONS = [
    {"id": "q1", "question": "Who made Jaws?", "answers": ["Spielberg", "Steven Spielberg"], "dataset": "films"},
    {"id": "q2", "question": "What is the capital of Ohio?", "answers": ["Columbus"], "hops": 1},
    {"id": "q3", "question": "When was Jaws made?", "answers": 1975},
    {"question": "Is Ohio a state?", "answers": "yes"},
]
#: right for q1 by any measure, for q2 by F1 and accuracy alone, wrong for q4; q3 has no answer and fails
SCRIPT = {
    "Who made Jaws": "So the answer is: Spielberg.",
    "capital of Ohio": "So the answer is: Columbus town.",
    "Is Ohio a state": "So the answer is: no.",
}
BASE = {"generator": {"name": "scripted", "script": SCRIPT}, "encoder": {"model": "hashing", "dimension": 16}}


class Needy:
    """An arm that no scripted generator can serve."""

    needs = frozenset({"completion", "attention"})

    def __init__(self, *, name):
        self.name = name
        self.params = {}

    async def answer(self, question, *, run):
        return Answer(text="", stop_reason="never")


class Ailing(Needy):
    """An arm that fails until there is a file named "healthy" in the working directory."""

    needs = frozenset()
    retrieves = False

    async def answer(self, question, *, run):
        if not Path("healthy").exists():
            raise ArmFailed("ailing \ud800")
        return Answer(text="well", stop_reason="answered")


def write_config(folder, **more):
    (folder / "config.yaml").write_text(yaml.safe_dump(BASE | more))


def index_corpus(passages):
    """Make the configured index of these passages."""
    write_json(Path("corpus.jsonl"), passages)
    settings = load(None).settings
    build_index(read_corpus(Path("corpus.jsonl")), index_folder(settings))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs `evaluate` on the questions with an index of the corpus; the file of answers is answers.jsonl."""
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    index_corpus(CORPUS)
    write_json(tmp_path / "questions.jsonl", QUESTIONS)

    def call(*words, strategy="no_retrieval,single_step"):
        given = ["--questions", "questions.jsonl", "--answers", "answers.jsonl"]
        chosen = () if "--strategy" in words else ("--strategy", strategy)
        return command.run("evaluate", *given, *chosen, *words)

    return call


def report(done):
    """The report by strategy."""
    assert done.exit_code == 0, done.output
    return {row["strategy"]: row for row in json.loads(done.stdout)}


def kept(path):
    return [json.loads(line) for line in (path / "answers.jsonl").read_text().splitlines()]


def test_means_and_the_comparison_are_over_all_questions(run, tmp_path):
    """Quality, steps and calls are means over every question, a failure is a 0 and is listed, and each arm is compared
    with the best other one.
    """
    done = run("--json")
    rows = report(done)
    none, single = rows["no_retrieval"], rows["single_step"]
    assert (single["exact_match"], single["accuracy"]) == (0.25, 0.5)
    assert single["f1"] == pytest.approx((1 + 2 / 3 + 0 + 0) / 4)
    assert (single["steps"], none["steps"]) == (1.0, 0.0)
    assert single["questions"] == none["questions"] == 4
    assert single["completion_tokens"] == pytest.approx((5 + 6 + 0 + 5) / 4)
    assert single["prompt_tokens"] > none["prompt_tokens"] > 0
    used = [row["cost"]["passages"] for row in kept(tmp_path) if row["arm"] == "single_step"]
    assert (single["passages"], none["passages"]) == (pytest.approx(sum(used) / 4), 0.0)
    assert sum(used) > 0
    assert [each["id"] for each in single["failures"]] == ["q3"]
    compared = single["comparison"]
    assert (compared["first"], compared["second"], compared["unit"]) == ("single_step", "no_retrieval", "steps")
    assert (compared["cost"]["estimate"], compared["verdict"], compared["rated"]) == (1.0, "not known yet", 4)
    said = run("--resume").output
    assert "failed: single_step q3: the script has no answer" in said
    assert "whether no_retrieval is better than single_step is not known yet" in said


def test_each_number_stands_under_its_name(run):
    """On the screen the columns of tokens and failures have the numbers of the report."""
    none = report(run("--json"))["no_retrieval"]
    lines = [line.strip("┃│ ") for line in run("--resume").output.splitlines()]
    (names,) = (re.split(r"\s*┃\s*", line) for line in lines if line.startswith("strategy"))
    (cells,) = (re.split(r"\s*│\s*", line) for line in lines if line.startswith("no_retrieval │"))
    assert len(cells) == len(names) == len({*names})
    shown = dict(zip(names, cells, strict=True))
    assert float(shown["prompt tokens"]) == pytest.approx(none["prompt_tokens"], rel=0.02)
    assert float(shown["written tokens"]) == pytest.approx(none["completion_tokens"], rel=0.02)
    assert (shown["steps"], shown["failed"]) == ("0.00", "1")


def test_table_is_what_read_table_reads(run, tmp_path):
    """The table has every question and arm, quality by reward.quality, steps, dataset and hops."""
    write_config(tmp_path, reward={"quality": "containment"})
    report(run("--json", "--table", "t.jsonl"))
    table = read_table("t.jsonl")
    assert table.arms == ("no_retrieval", "single_step")
    assert [row.id for row in table.rows] == ["q1", "q2", "q3", "row-4"]
    assert table.correct.tolist() == [[1, 1], [1, 1], [0, 0], [0, 0]]
    assert table.steps.tolist() == [[0, 1]] * 4
    assert table.rows[1].hops == 1


def test_resume_runs_only_what_is_missing(run, tmp_path):
    """What is answered is not run again: the old answers stay and count, and the new ones are appended."""
    report(run("--json", "--limit", "2"))
    before = [row | {"answer": "old"} for row in kept(tmp_path)]
    write_json(tmp_path / "answers.jsonl", before)
    row = report(run("--json", "--resume"))["single_step"]
    after = kept(tmp_path)
    assert len(before) == 4
    assert after[:4] == before
    assert [row["answer"] for row in after[4:]] == [None, None, "no", "no"]
    assert row["accuracy"] == 0.0


def test_what_is_other_work(run, tmp_path):
    """After its params, its prompt file or the corpus changed an arm answers again; other arms do not."""
    prompt = "[body]\n{passages}\n{question}\n[prefix]\n"
    (tmp_path / "mine.txt").write_text(prompt)

    def counts(**params):
        write_config(tmp_path, arms={"single_step": params, "no_retrieval": {}})
        report(run("--json", "--resume"))
        arms = [row["arm"] for row in kept(tmp_path)]
        return arms.count("single_step"), arms.count("no_retrieval")

    assert counts() == (4, 4)
    assert counts(passages=1) == (8, 4)
    own = {"templates": {"read_direct": "mine.txt"}}
    assert counts(**own) == (12, 4)
    (tmp_path / "mine.txt").write_text("# the same prompt under a title\n" + prompt)
    assert counts(**own) == (12, 4)
    (tmp_path / "mine.txt").write_text(prompt + "Capital of Ohio?")
    assert counts(**own) == (16, 4)
    index_corpus(CORPUS[:1])
    report(run("--json", "--resume", strategy="single_step"))
    assert len({row["made_by"]["retriever"] for row in kept(tmp_path) if row["arm"] == "single_step"}) == 2
    assert len(kept(tmp_path)) == 24


def test_failed_answers_are_asked_again_on_request(run, tmp_path):
    """--resume keeps failures; --retry-failed asks only these again. An arm that failed everywhere ends with 1, and the
    table is written all the same.
    """
    ailing = {"class": f"{__name__}:Ailing"}
    write_config(tmp_path, arms={"ailing": ailing, "no_retrieval": {}, "single_step": {}})

    def failures(word):
        done = run("--json", word, "--table", "t.jsonl", strategy="ailing,no_retrieval")
        rows = {row["strategy"]: row["failed"] for row in json.loads(done.stdout)}
        said = "every answer of ailing failed and counts as wrong" in done.stderr
        return rows["ailing"], rows["no_retrieval"], len(kept(tmp_path)), done.exit_code, said

    assert failures("--resume") == (4, 1, 8, 1, True)
    assert read_table("t.jsonl").correct[:, 0].tolist() == [0, 0, 0, 0]
    (tmp_path / "healthy").touch()
    assert failures("--resume") == (4, 1, 8, 1, True)
    assert failures("--retry-failed") == (0, 1, 13, 0, False)
    assert failures("--resume") == (0, 1, 13, 0, False)


def test_advise_uses_the_same_answers(run, tmp_path):
    """The answers that `evaluate` stored are not asked again by `advise`, which runs configured arms too."""
    (tmp_path / "healthy").touch()
    write_config(tmp_path, arms={"ailing": {"class": f"{__name__}:Ailing"}, "no_retrieval": {}})
    report(run("--json", strategy="ailing,no_retrieval"))
    before = kept(tmp_path)
    words = ("--answers", "answers.jsonl", "--folds", "2", "--json")
    said = json.loads(command.run("advise", "questions.jsonl", *words, code=4).stdout)
    assert (said["answered"], said["verdict"], kept(tmp_path)) == (4, "not enough", before)


def test_answers_are_not_overwritten(run, tmp_path):
    """Without --resume a file with answers is refused, as it is while another evaluation has it; a torn line is run
    again.
    """
    report(run("--json"))
    before = kept(tmp_path)
    done = run("--json")
    with AnswerFile(tmp_path / "answers.jsonl", resume=True):
        other = run("--json", "--resume")
    assert (done.exit_code, "--resume" in done.output) == (2, True)
    assert (other.exit_code, "another evaluation" in other.output) == (2, True)
    assert kept(tmp_path) == before
    file = tmp_path / "answers.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    report(run("--json", "--resume"))
    assert kept(tmp_path)[:-1] == before[:-1]
    assert kept(tmp_path)[-1]["key"] == before[-1]["key"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"answer": 5}, "answer"),
        ({"status": "nope"}, "status"),
        ({"steps": "3"}, "steps"),
        ({"steps": True}, "steps"),
        ({"steps": -1.0}, "steps"),
        ({"steps": 10**400}, "steps"),
        ({"steps": float("nan")}, "not a finite number"),
        ({"cost": None}, "cost"),
        ({"cost": {"llm_calls": "3"}}, "llm_calls"),
        ({"cost": {"dollars": float("inf")}}, "not a finite number"),
        ({"cost": {"coins": 3}}, "coins"),
        ({"made_by": []}, "made_by"),
        ({"score": 7.0}, "score"),
        ({"key": None}, "key"),
        ({"more": 1}, "more"),
    ],
)
def test_a_stored_answer_with_wrong_values_is_named(tmp_path, changed, said):
    """A line of answers with infinite, unknown or other values is refused with its number and a remedy."""
    stored = StoredAnswer(
        key="k",
        arm="a",
        question="q?",
        status="answered",
        answer="x",
        stop_reason="done",
        error=None,
        steps=1.0,
        cost=Cost(llm_calls=1),
        made_by={"arm": "a"},
        made_at=1.0,
    )
    file, whole = tmp_path / "answers.jsonl", asdict(stored)
    file.write_text(f"{json.dumps(whole)}\n{json.dumps({**whole, 'key': 'half', 'answer': chr(0xD800)})}\n")
    with AnswerFile(file, resume=True) as answers:
        assert answers.by_key["k"] == stored
        assert answers.by_key["half"].answer == "?"
    file.write_text(f"{json.dumps(whole)}\n{json.dumps(whole | changed)}\n")
    with pytest.raises(InvalidInput, match=said) as caught:
        AnswerFile(file, resume=True)
    assert (caught.value.field, bool(caught.value.remedy)) == (f"{file}:2", True)


@pytest.mark.parametrize("seconds", ["NaN", "1e400", "1" + "0" * 400, "true", "-1", '"3"'])
def test_a_kept_reply_with_wrong_seconds_is_named(tmp_path, seconds):
    """A line of kept replies whose seconds are no amount is refused with its number."""
    file = tmp_path / "replies.jsonl"
    file.write_text(f'{{"key": "k", "reply": "yes", "seconds": {seconds}}}\n')
    with pytest.raises(InvalidInput) as caught, ReplyCache(None, file=file):
        pass
    assert caught.value.field == f"{file}:1"


def test_all_names_what_cannot_be_run(run, tmp_path):
    """The word "all" runs every strategy that the generator can serve, and one line says why others are left out."""
    needy = {"class": "tests.additions.evaluation.test_evaluate_cli:Needy"}
    write_config(tmp_path, arms={"single_step": {}, "needy": needy, "gone": {"class": "nowhere:Arm"}})
    done = run("--json", strategy="all")
    assert {"no_retrieval", "single_step", "multi_step"} <= set(report(done))
    assert not {"needy", "gone"} & set(report(done))
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("left out: ")]
    assert "needy: the generator lacks attention" in line
    assert "gone: arms.gone.class: 'nowhere:Arm' cannot be imported" in line
    forms = sorted({"callable", "http", "model", *arm_parts()})
    assert f"{', '.join(forms)}: no strategies by themselves" in line
    assert not {*forms} & set(report(done))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--strategy", "needy"), "needs attention"),
        (("--strategy", "all,nobody"), "'nobody' is not a known arm"),
        (("--strategy", "singlestep"), "(did you mean single_step? known: "),
        (("--strategy", "theirs"), "cannot run theirs, which your code runs"),
        (("--strategy", ","), "no strategy"),
        (("--strategy", "single_step", "--table", "out.jsonl"), "nothing to route"),
        (("--family", "trivia"), "known: 2wiki"),
        (("--questions", "missing.jsonl"), "missing.jsonl: the file cannot be read"),
        (("--questions", "empty.jsonl"), "empty.jsonl: the file has no rows (give a file with at least one JSON"),
        (("--questions", "latin.jsonl"), "latin.jsonl:2: is not UTF-8: its byte 18 is 0xe9"),
    ],
)
def test_what_cannot_be_evaluated_is_named(run, tmp_path, words, named):
    """An arm that is unknown or lacks something, a table of one arm, a contradiction, an unknown family and a file that
    cannot be read end with exit code 2, before anything is run, and with no word of logs.
    """
    needy = {"class": "tests.additions.evaluation.test_evaluate_cli:Needy"}
    write_config(tmp_path, arms={"single_step": {}, "no_retrieval": {}, "needy": needy, "theirs": {"run_by": "caller"}})
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "latin.jsonl").write_bytes(json.dumps(QUESTIONS[0]).encode() + b'\n{"question": "caf\xe9?"}\n')
    done = run(*words)
    assert done.exit_code == 2
    assert named in done.output
    assert "a log" not in done.output
    assert not (tmp_path / "answers.jsonl").exists()

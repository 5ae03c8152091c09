"""`ragbandit evaluate --family crud` from outside: a scripted model answers and judges, jieba cuts words."""

import json

import pytest
import yaml

from tests.integration.cli.test_evaluate_cli import kept, report
from tests.support import command
from tests.support.logs.log_rows import write_json

GOLD = "张三在三月造了船。"
CORPUS = [{"id": "ship", "title": "造船史", "text": "有人造了船。"}]
QUESTIONS = [
    {"id": "q1", "question": "谁在何时造了船?", "dataset": "crud", "reference": GOLD},
    {
        "id": "q2",
        "question": "船在哪里?",
        "dataset": "crud",
        "quiz": {"questions": ["地点?", "原因?"], "references": ["北京", "无法推断"]},
    },
]
#: replies of the judge; they come first, since its prompts contain questions too
JUDGE = {
    "请针对": "1: 谁造了船?\n2: 何时造的?",
    f"文字\uff1a\n{GOLD}": "1: 张三\n2: 三月",
    "文字\uff1a\n张三造的": "1: 张三\n2: 无法推断",
    "文字\uff1a\n李四在三月造的": "1: 李四\n2: 三月",
    "文字\uff1a\n在北京": "1: 北京",
}
#: a user's prompt, and the judge's reply to it
OWN = "[body]\nREAD {text}\nor say 无法推断\n{questions}"
SAID_TO_OWN = {
    f"READ {GOLD}": "1: 张三\n2: 三月",
    "READ 张三造的": "1: 李四\n2: 三月",
    "READ 李四在三月造的": "1: 无法推断\n2: 三月",
    "READ 在北京": "1: 无法推断",
}
#: single_step is told apart by the title of its passage
ARMS = {"哪里": "在北京", "造船史": "李四在三月造的", "谁在何时": "张三造的"}


def write_config(folder, script, *, name="config.yaml", **more):
    tree = {"generator": {"name": "scripted", "script": script}, "encoder": {"model": "hashing", "dimension": 16}}
    tree |= more
    (folder / name).write_text(yaml.safe_dump(tree, allow_unicode=True, sort_keys=False), encoding="utf-8")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path, JUDGE | ARMS)
    write_json(tmp_path / "corpus.jsonl", CORPUS)
    write_json(tmp_path / "questions.jsonl", QUESTIONS)

    def call(*words, family="crud"):
        given = ["--questions", "questions.jsonl", "--corpus", "corpus.jsonl", "--answers", "answers.jsonl"]
        given += ["--family", family, "--strategy", "no_retrieval,single_step"]
        return command.run("evaluate", *given, *words)

    return call


def replies(folder):
    """File -> what the judge said, of the judge's cache."""
    files = (folder / ".ragbandit" / "cache" / "judge").glob("*/*.json")
    return {file: json.loads(file.read_text(encoding="utf-8")) for file in files}


def test_figures_are_those_of_the_quizzes(run):
    """Q-R, T-P, T-R and T-F1 are means over all questions; quizzes are made or taken as given."""
    rows = report(run("--json"))
    none, single = rows["no_retrieval"], rows["single_step"]
    assert none["answered"] == 0.75
    assert none["word_f1"] == none["word_precision"] == none["word_recall"] == 1.0
    assert (single["answered"], single["word_f1"]) == (1.0, 0.75)
    assert (none["unjudged"], single["unjudged"], single["failed"]) == ([], [], 0)


def test_the_judge_is_asked_once(run, tmp_path):
    """Its replies are kept: with --resume the kept ones are read, and a reply that is gone is asked for again."""
    before = report(run("--json"))["single_step"]
    (file,) = [file for file, reply in replies(tmp_path).items() if "李四" in reply["text"]]
    file.write_text(json.dumps(replies(tmp_path)[file] | {"text": "1: 张三\n2: 三月"}), encoding="utf-8")
    assert report(run("--json", "--resume"))["single_step"]["word_f1"] == 1.0
    file.unlink()
    assert report(run("--json", "--resume"))["single_step"] == before
    assert len(replies(tmp_path)) == 5


def test_an_answer_that_the_judge_fails_on_counts_zero_and_is_listed(run, tmp_path):
    """It stays in the mean, with its error; a failure is not kept, so that the judge is asked again."""
    script = {key: said for key, said in (JUDGE | ARMS).items() if "李四" not in key}
    write_config(tmp_path, script, name="judge.yaml")
    row = report(run("--json", "--judge", "judge.yaml"))["single_step"]
    assert (row["answered"], row["failed"]) == (0.5, 0)
    assert [each["id"] for each in row["unjudged"]] == ["q1"]
    assert "no answer for this prompt" in row["unjudged"][0]["error"]
    assert "not judged: single_step q1:" in run("--resume", "--judge", "judge.yaml").output
    assert report(run("--json", "--resume"))["single_step"]["unjudged"] == []


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({}, "reference: the value is missing"),
        ({"reference": " "}, "reference: is empty"),
        ({"quiz": {"questions": ["a"]}}, "quiz: must have questions and references"),
        ({"quiz": {"questions": ["a"], "references": "b"}}, "quiz: must have questions and references"),
        ({"quiz": {"questions": ["a"], "references": ["b", "c"]}}, "1 questions and 2 references"),
        ({"quiz": {"questions": ["a"], "references": ["无法推断"]}}, "no question has an answer"),
    ],
)
def test_row_without_a_gold_text_is_named(run, tmp_path, row, named):
    """A question of CRUD brings its gold text, or a quiz that can be asked."""
    write_json(tmp_path / "questions.jsonl", [QUESTIONS[0], {"question": "谁?", **row}])
    done = run()
    assert done.exit_code == 2
    assert "questions.jsonl:2" in done.output
    assert named in done.output


def test_own_prompts_judge_otherwise(run, tmp_path):
    """With the user's prompts the same answers are judged again; with the default ones the stored judgements count
    again.
    """
    script = SAID_TO_OWN | JUDGE | ARMS
    write_config(tmp_path, script)
    before = report(run("--json"))
    answers, ours = kept(tmp_path), replies(tmp_path)
    (tmp_path / "answer.txt").write_text(OWN, encoding="utf-8")
    write_config(tmp_path, script, judge={"templates": {"crud_answer": "answer.txt"}})
    after = report(run("--json", "--resume"))
    assert [row["answered"] for row in before.values()] == [0.75, 1.0]
    assert [row["answered"] for row in after.values()] == [0.5, 0.25]
    assert [row["word_f1"] for row in after.values()] == [0.25, 0.5]
    assert all(not row["unjudged"] for row in after.values())
    assert kept(tmp_path) == answers
    both = replies(tmp_path)
    assert len(both) == len(ours) + 4, "the questions of the quiz are asked for as before"
    write_config(tmp_path, script)
    assert report(run("--json", "--resume")) == before
    assert replies(tmp_path) == both

"""`ragbandit evaluate --family crud` from outside: a scripted model answers and judges, jieba cuts words."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from ragbandit.router.offline.logs.tables import read_table
from ragbandit.workers.cli import app
from tests.integration.cli.test_evaluate_cli import kept, report, write_lines

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
#: what the judge says; first, for its prompts hold questions too
JUDGE = {
    "请针对": "1: 谁造了船?\n2: 何时造的?",
    f"文字\uff1a\n{GOLD}": "1: 张三\n2: 三月",
    "文字\uff1a\n张三造的": "1: 张三\n2: 无法推断",
    "文字\uff1a\n李四在三月造的": "1: 李四\n2: 三月",
    "文字\uff1a\n在北京": "1: 北京",
}
#: a prompt of the user's own, and what the judge says to it
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
    write_lines(tmp_path / "corpus.jsonl", CORPUS)
    write_lines(tmp_path / "questions.jsonl", QUESTIONS)

    def call(*words, family="crud"):
        given = ["--questions", "questions.jsonl", "--corpus", "corpus.jsonl", "--answers", "answers.jsonl"]
        given += ["--family", family, "--strategy", "no_retrieval,single_step"]
        return CliRunner().invoke(app, ["evaluate", *given, *words])

    return call


def replies(folder):
    """File -> what the judge said, of the judge's cache."""
    files = (folder / ".ragbandit" / "cache" / "judge").glob("*/*.json")
    return {file: json.loads(file.read_text(encoding="utf-8")) for file in files}


def test_figures_are_those_of_the_quizzes(run):
    """Q-R, T-P, T-R and T-F1 are means over all questions with standard errors; quizzes are made or taken as given."""
    rows = report(run("--json"))
    none, single = rows["no_retrieval"], rows["single_step"]

    assert (none["answered"], none["answered_se"]) == (0.75, pytest.approx(0.25))
    assert none["word_f1"] == none["word_precision"] == none["word_recall"] == 1.0
    assert (single["answered"], single["word_f1"]) == (1.0, 0.75)
    assert single["word_f1_se"] == pytest.approx(0.25)
    assert (none["unjudged"], single["unjudged"], single["failed"]) == ([], [], 0)


def test_the_table_names_figures_and_judge(run):
    """On the terminal the measures are headed as in the paper, in percent, and the judge is named."""
    said = run().output

    assert all(head in said for head in ("Q-R %", "T-P %", "T-R %", "T-F1 %", "75.0 ± 25.0"))
    assert "judged by scripted" in said


def test_the_judge_is_asked_once(run, tmp_path):
    """Its replies are kept: with --resume the kept ones are read, and a reply that is gone is asked for again."""
    before = report(run("--json"))["single_step"]
    (file,) = [file for file, reply in replies(tmp_path).items() if "李四" in reply["text"]]
    file.write_text(json.dumps(replies(tmp_path)[file] | {"text": "1: 张三\n2: 三月"}), encoding="utf-8")

    assert report(run("--json", "--resume"))["single_step"]["word_f1"] == 1.0
    file.unlink()
    assert report(run("--json", "--resume"))["single_step"] == before
    assert len(replies(tmp_path)) == 5


def test_another_configuration_may_judge(run, tmp_path):
    """The generator of --judge judges the same answers, which are not made again; it has replies of its own."""
    first = report(run("--json"))["no_retrieval"]
    answers = kept(tmp_path)
    write_config(tmp_path, JUDGE | {"文字\uff1a\n张三造的": "1: 张三\n2: 五月"}, name="judge.yaml")
    other = report(run("--json", "--resume", "--judge", "judge.yaml"))["no_retrieval"]

    assert (first["answered"], other["answered"]) == (0.75, 1.0)
    assert other["word_f1"] == 0.75
    assert kept(tmp_path) == answers


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


def test_a_gold_text_without_a_quiz_counts_zero_for_every_arm(run, tmp_path):
    """Where the judge makes no question, nobody gets the text for free."""
    write_config(tmp_path, JUDGE | {"请针对": "没有。"}, name="judge.yaml")
    rows = report(run("--json", "--judge", "judge.yaml"))

    assert [row["answered"] for row in rows.values()] == [0.5, 0.5]
    assert all("made no question" in row["unjudged"][0]["error"] for row in rows.values())


def test_judge_that_fails_on_everything_ends_with_1(run, tmp_path):
    """The report is printed, and standard error says that its zeros are no judgement."""
    write_config(tmp_path, {}, name="judge.yaml")
    done = run("--json", "--judge", "judge.yaml")

    assert done.exit_code == 1
    assert [len(row["unjudged"]) for row in json.loads(done.stdout)] == [2, 2]
    assert "every answer of no_retrieval, single_step could not be judged" in done.stderr
    assert "failed and counts" not in done.stderr


def test_table_counts_unanswered_questions(run):
    """What a policy learns is T-F1 over all questions of the quiz, those without an answer included as 0."""
    report(run("--json", "--table", "t.jsonl"))

    assert [row.correct for row in read_table("t.jsonl").rows] == [
        {"no_retrieval": 0.5, "single_step": 0.5},
        {"no_retrieval": 1.0, "single_step": 1.0},
    ]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({}, "reference: is missing"),
        ({"reference": " "}, "reference: is empty"),
        ({"quiz": {"questions": ["a"]}}, "quiz: is no quiz"),
        ({"quiz": {"questions": ["a"], "references": "b"}}, "quiz: is no quiz"),
        ({"quiz": {"questions": ["a"], "references": ["b", "c"]}}, "1 questions and 2 references"),
        ({"quiz": {"questions": ["a"], "references": ["无法推断"]}}, "no question has an answer"),
    ],
)
def test_row_without_a_gold_text_is_named(run, tmp_path, row, named):
    """A question of CRUD brings its gold text, or a quiz that can be asked."""
    write_lines(tmp_path / "questions.jsonl", [QUESTIONS[0], {"question": "谁?", **row}])
    done = run()

    assert done.exit_code == 2
    assert "questions.jsonl:2" in done.output
    assert named in done.output


@pytest.mark.parametrize(
    ("words", "family", "named"),
    [
        (("--judge", "config.yaml"), "ours", "family ours has no judge"),
        (("--judge", "nowhere.yaml"), "crud", "nowhere.yaml does not exist"),
        ((), "crude", "known: 2wiki, adaptive_note, asqa, asqa_adaptive_note, crud, "),
    ],
)
def test_judge_that_cannot_be_used_is_named(run, words, family, named):
    """A judge where none is wanted, one that is not there and a mistyped family end with exit code 2."""
    done = run(*words, family=family)

    assert done.exit_code == 2
    assert named in done.output


def test_own_prompts_judge_otherwise(run, tmp_path):
    """With prompts of the user's own the same answers are judged anew; with ours the kept judgements stand again."""
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


def test_own_prompts_are_those_of_the_judge(run, tmp_path, monkeypatch):
    """With --judge its file has the prompts; those of --config and of the environment do not reach it."""
    script = SAID_TO_OWN | JUDGE | ARMS
    write_config(tmp_path, script, judge={"templates": {"crud_answer": "nowhere.txt"}})
    write_config(tmp_path, script, name="judge.yaml", judge={"templates": {"crud_answer": OWN}})
    monkeypatch.setenv("RAGBANDIT_JUDGE__TEMPLATES__CRUD_QUESTIONS", "nowhere.txt")

    assert report(run("--json", "--judge", "judge.yaml"))["single_step"]["answered"] == 0.25


@pytest.mark.parametrize(
    ("where", "templates", "named"),
    [
        ("config.yaml", {"crud_anwser": OWN}, "judge.templates.crud_anwser: is not used here"),
        ("judge.yaml", {"crud_answer": "nowhere.txt"}, "judge.templates.crud_answer: 'nowhere.txt' cannot be read"),
        ("config.yaml", {"crud_answer": "[body]\n{text}无法推断"}, "judge.templates.crud_answer: has the fields"),
        ("judge.yaml", {"crud_answer": 4}, "judge.templates.crud_answer: must be a valid string, not 4"),
    ],
)
def test_own_prompt_that_cannot_be_used_ends_the_command_at_once(run, tmp_path, where, templates, named):
    """Nothing is indexed or answered before the prompts of the judge are read."""
    write_config(tmp_path, JUDGE | ARMS, name=where, judge={"templates": templates})
    done = run(*(["--judge", where] if where == "judge.yaml" else []))

    assert done.exit_code == 2
    assert named in done.output
    assert not (tmp_path / "answers.jsonl").exists()
    assert not (tmp_path / ".ragbandit").exists()


def test_own_prompts_are_not_read_where_nobody_judges(run, tmp_path):
    """Another family than crud does without the prompts, whatever they are; `validate` names what is wrong."""
    write_config(tmp_path, JUDGE | ARMS, judge={"templates": {"crud_answer": "nowhere.txt"}})
    write_lines(tmp_path / "questions.jsonl", [{"question": "谁在何时造了船?", "answers": ["张三"]}])
    done = CliRunner().invoke(app, ["validate"])

    assert run(family="ours").exit_code == 0
    assert done.exit_code == 2
    assert "judge.templates.crud_answer" in done.output


def test_own_prompts_that_can_be_used_are_printed(tmp_path, monkeypatch):
    """`validate` prints the prompts that are in force with where they came from."""
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path, JUDGE | ARMS, judge={"templates": {"crud_answer": OWN}})
    done = CliRunner().invoke(app, ["validate", "--json"])

    row = {"key": "judge.templates.crud_answer", "value": OWN, "source": "file config.yaml"}
    assert row in json.loads(done.output)

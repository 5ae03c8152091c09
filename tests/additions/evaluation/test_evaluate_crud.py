"""`ragbandit evaluate --family crud` from outside: a scripted model answers, another one judges, jieba cuts words."""

import json
from collections import Counter

import jieba
import pytest
import yaml

from tests.additions.evaluation.test_evaluate_cli import index_corpus, report
from tests.support import command
from tests.support.logs.log_rows import write_json

GOLD = "张三在三月造了船。"
CORPUS = [{"id": "ship", "title": "造船史", "text": "有人造了船。"}]
QUIZ = {"questions": ["地点?", "原因?"], "answers": ["北京", "无法推断"]}
QUESTIONS = [
    {"ID": "q1", "questions": "谁在何时造了船?", "dataset": "crud", "answers": GOLD},
    {"ID": "q2", "questions": "船在哪里?", "dataset": "crud", "answers": "船在北京。", "quiz": QUIZ},
]
#: answer of no_retrieval, and of single_step, whose prompt has the title of the passage
ANSWERS = {"q1": ("张三造的船", "李四在三月造的"), "q2": ("在北京", "在北京")}
SCRIPT = {"哪里": "在北京", "造船史": "李四在三月造的", "谁在何时": "张三造的船"}
JUDGE = {
    "请针对": "1: 谁造了船?\n2: 何时造的?",
    f"文字\uff1a\n{GOLD}": "1: 张三\n2: 在三月",
    "文字\uff1a\n张三造的船": "1: 张三\n2: 无法推断",
    "文字\uff1a\n李四在三月造的": "1: 李四\n2: 三月",
    "文字\uff1a\n在北京": "1: 在北京",
}
#: (right answer, answer of the judge) of the questions that it answers, for no_retrieval and single_step
PAIRS = {
    "no_retrieval": [[("张三", "张三")], [("北京", "在北京")]],
    "single_step": [[("张三", "李四"), ("在三月", "三月")], [("北京", "在北京")]],
}


def shares(right, answer, *, cut):
    """Recall, precision and F1 of two texts, by their definition."""
    right, answer = Counter(cut(right)), Counter(cut(answer))
    same = sum(min(count, answer[word]) for word, count in right.items())
    recall, precision = same / sum(right.values()), same / sum(answer.values())
    return recall, precision, 2 * recall * precision / (recall + precision) if same else 0.0


def write_config(folder, judge=JUDGE, **more):
    generator = {"name": "scripted", "script": SCRIPT}
    section = {"generator": {"name": "scripted", "script": judge, "token_prices": {"input": 100.0, "output": 200.0}}}
    tree = {"generator": generator, "judge": section, "encoder": {"model": "hashing", "dimension": 16}} | more
    (folder / "config.yaml").write_text(yaml.safe_dump(tree, allow_unicode=True, sort_keys=False), encoding="utf-8")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    index_corpus(CORPUS)
    write_json(tmp_path / "questions.jsonl", QUESTIONS)

    def call(*words, family="crud"):
        given = ["--questions", "questions.jsonl", "--answers", "answers.jsonl"]
        return command.run("evaluate", *given, "--family", family, "--strategy", "no_retrieval,single_step", *words)

    return call


def test_measures_are_those_of_their_definitions(run):
    """Q-R, T-R, T-P, T-F1 and the F1 of characters are the means of an independent computation."""
    rows = report(run("--json"))
    jieba.setLogLevel("WARNING")
    asked = (2, 1)
    for place, (arm, pairs) in enumerate(PAIRS.items()):
        per_question = []
        for answered, count in zip(pairs, asked, strict=True):
            columns = zip(*(shares(*pair, cut=jieba.lcut) for pair in answered), strict=True)
            per_question.append([len(answered) / count, *(sum(column) / len(answered) for column in columns)])
        wanted = [sum(column) / 2 for column in zip(*per_question, strict=True)]
        found = [rows[arm][name] for name in ("answered", "word_recall", "word_precision", "word_f1")]
        assert found == pytest.approx(wanted)
        golds = {"q1": GOLD.strip("。"), "q2": "船在北京"}
        characters = [shares(golds[key], ANSWERS[key][place], cut=list)[2] for key in golds]
        assert rows[arm]["character_f1"] == pytest.approx(sum(characters) / 2)
        assert rows[arm]["unjudged"] == []
    assert rows["no_retrieval"]["answered"] == 0.75
    assert 0 < rows["single_step"]["word_f1"] < rows["no_retrieval"]["word_f1"] < 1


def test_the_table_has_the_product_of_the_quiz(run, tmp_path):
    """`correct` is Q-R times T-F1 of each answer, which advise and policy train read."""
    report(run("--json", "--table", "table.jsonl"))
    first = json.loads((tmp_path / "table.jsonl").read_text().splitlines()[0])
    assert first["correct"]["no_retrieval"] == pytest.approx(0.5 * 1.0)


def test_the_cost_of_the_judge_is_shown_and_its_replies_are_kept(run, tmp_path):
    """Five calls have tokens and dollars at the judge's prices; with --resume only missing replies are asked again."""
    first = report(run("--json"))["no_retrieval"]["judge"]
    assert first["calls"] == 5
    priced = (100.0 * first["prompt_tokens"] + 200.0 * first["completion_tokens"]) / 1e6
    assert first["dollars"] == pytest.approx(priced)
    assert first["dollars"] > 0
    replies = tmp_path / "answers.judge.jsonl"
    lines = replies.read_text().splitlines(keepends=True)
    assert report(run("--json", "--resume"))["no_retrieval"]["judge"]["calls"] == 0
    replies.write_text("".join(lines[1:]) + lines[0][:9])
    again = run("--resume")
    assert "judge scripted: 1 call, " in again.output
    assert len(replies.read_text().splitlines()) == 5


def test_an_answer_on_which_the_judge_fails_counts_zero_and_is_listed(run, tmp_path):
    """It stays in the mean with its error, and the next run asks the judge again. If all fail, the exit code is 1."""
    write_config(tmp_path, {key: said for key, said in JUDGE.items() if "李四" not in key})
    row = report(run("--json"))["single_step"]
    assert (row["answered"], row["failed"]) == (0.5, 0)
    assert [each["id"] for each in row["unjudged"]] == ["q1"]
    assert "no answer for this prompt" in row["unjudged"][0]["error"]
    assert "not judged: single_step q1:" in run("--resume").output
    write_config(tmp_path)
    assert report(run("--json", "--resume"))["single_step"]["unjudged"] == []
    write_config(tmp_path, {"nothing": "?"})
    (tmp_path / "answers.judge.jsonl").unlink()
    done = run("--resume")
    assert done.exit_code == 1
    assert "every answer of no_retrieval, single_step was not judged" in " ".join(done.output.split())


def test_without_a_judge_the_remedy_is_a_line_of_configuration(run, tmp_path):
    """The family needs judge.generator; the error names it before an arm is asked."""
    write_config(tmp_path, judge={"generator": None})
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump({"generator": {"name": "scripted", "script": SCRIPT}, "encoder": {"model": "hashing"}})
    )
    done = run()
    assert done.exit_code == 2
    assert "judge.generator" in done.output
    assert not (tmp_path / "answers.jsonl").exists()


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({}, "no right answers"),
        ({"answers": "船", "quiz": ["谁?"]}, "is not a quiz"),
        ({"answers": "船", "quiz": {"questions": ["谁?"]}}, "is not a quiz"),
        ({"answers": "船", "quiz": {"questions": ["谁?"], "answers": ["甲", "乙"]}}, "1 questions and 2 answers"),
        ({"answers": "船", "quiz": {"questions": ["谁?"], "answers": ["无法推断"]}}, "answers no question"),
    ],
)
def test_a_row_that_cannot_be_judged_is_named(run, tmp_path, row, named):
    """A question needs a gold text, and a quiz needs questions and answers in pairs."""
    write_json(tmp_path / "questions.jsonl", [QUESTIONS[0], {"question": "谁?", **row}])
    done = run()
    assert done.exit_code == 2
    assert "questions.jsonl:2" in done.output
    assert named in " ".join(done.output.split())

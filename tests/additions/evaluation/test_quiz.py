"""RAGQuestEval with a scripted judge: what counts as answered, and what a failure costs."""

import asyncio
import sys

import pytest

from ragbandit.additions.evaluation.quiz import (
    CANNOT_INFER,
    MEASURES,
    QUESTIONS,
    Quiz,
    QuizJudge,
    grade_with_quiz,
    load_chinese_splitter,
    write_quiz,
)
from ragbandit.router.config.settings import JudgeSettings
from ragbandit.shared.errors import ArmFailed, ConfigError, InvalidInput
from ragbandit.strategies.generators.scripted import ScriptedGenerator

QUIZ = Quiz(questions=("谁", "何时", "何地", "为何"), answers=("张三", "三月 一日", "北京", CANNOT_INFER))
ZERO = dict.fromkeys(MEASURES, 0.0)


def judge_of(replies, **more):
    return QuizJudge(seconds=JudgeSettings().seconds, max_tokens=64, generator=ScriptedGenerator(replies, **more))


def score_of(reply, *, text="文字", **more):
    judge = judge_of([reply], **more)
    return asyncio.run(grade_with_quiz(text, quiz=QUIZ, judge=judge, ask=judge.ask, cut=str.split)), judge


def quiz_of(replies):
    judge = judge_of(replies)
    return asyncio.run(write_quiz("张三在三月造了船。", judge=judge, ask=judge.ask)), judge


def test_answers_are_compared_word_by_word():
    """Recall, precision and F1 are means over the answered questions; "cannot infer" is not answered."""
    score, judge = score_of("1: 张三\n2\uff1a三月 二日 下午 前\n3: 无法推断。")
    shares = {"answered": 2 / 3, "word_precision": (1 + 1 / 4) / 2, "word_recall": (1 + 1 / 2) / 2}
    assert score == pytest.approx({**shares, "word_f1": (1 + 1 / 3) / 2})
    assert "文字" in judge.generator.prompts[0].body


def test_questions_without_an_answer_in_the_gold_text_are_not_asked():
    """A question whose right answer is "cannot infer" is not in the prompt and not in the denominator."""
    score, judge = score_of("1: 张三\n2: 三月 一日\n3: 北京")
    assert "为何" not in judge.generator.prompts[0].body
    assert score == dict.fromkeys(MEASURES, 1.0)


def test_answers_belong_by_number_not_by_place():
    """A missing, blank or shuffled line moves no other answer; a missing answer is unanswered."""
    score, _ = score_of("好的。\n3: 北京\n2:\n1: 张三\n1: 李四\n9: 多余")
    assert score["answered"] == pytest.approx(2 / 3)
    assert score["word_f1"] == 1.0


def test_a_reply_without_numbers_answers_nothing():
    """A reply that cannot be read is no error: every share is 0."""
    assert score_of("我不知道")[0] == ZERO


def test_a_blank_text_counts_nothing_and_costs_nothing():
    """An empty answer of an arm is 0 without asking the judge."""
    score, judge = score_of("1: 张三", text=" \n")
    assert score == ZERO
    assert (judge.calls, judge.bill.cost.prompt_tokens) == (0, 0)


@pytest.mark.parametrize(("text", "why"), [("文字", "fails at call 1"), ("字 " * 5000, "room for")])
def test_a_judge_that_fails_or_cannot_read_the_text_gives_the_reason(text, why):
    """A text longer than the judge can read is not cut: it fails."""
    with pytest.raises(ArmFailed, match=why):
        score_of("", text=text, fail_at=[1])


def test_a_reply_that_is_cut_is_a_failure_and_is_booked():
    """A reply at the limit of tokens may lack answers, so it does not count; its tokens do."""
    judge = judge_of(["1: 张 " * 100])
    with pytest.raises(ArmFailed, match="64 tokens"):
        asyncio.run(grade_with_quiz("文字", quiz=QUIZ, judge=judge, ask=judge.ask, cut=str.split))
    assert (judge.calls, judge.bill.cost.completion_tokens) == (1, 64)
    assert judge.bill.cost.prompt_tokens > 0


@pytest.mark.parametrize(
    ("questions", "answers", "named"),
    [
        (("a", "b"), ("c",), "2 questions and 1 answers"),
        (("a",), ("“无法推断”。",), "the gold text answers no question"),
        ((), (), "the gold text answers no question"),
    ],
)
def test_a_quiz_that_cannot_be_asked_is_refused(questions, answers, named):
    """Questions and answers go in pairs, and the gold text answers at least one question."""
    with pytest.raises(InvalidInput, match=named):
        Quiz(questions=questions, answers=answers)


def test_the_quiz_is_made_from_the_gold_text():
    """The judge writes questions and answers them from the same text; a question without an answer is not asked."""
    quiz, judge = quiz_of(["好的\n1: 谁?\n2\uff1a何时?\n3: 谁?", "1: 张三\n2: 无法推断"])
    assert (quiz.questions, quiz.answers) == (("谁?", "何时?"), ("张三", CANNOT_INFER))
    assert quiz.asked == (("谁?", "张三"),)
    prompts = judge.generator.prompts
    assert all("张三在三月造了船" in prompt.body for prompt in prompts)
    assert "1: 谁?\n2: 何时?" in prompts[1].body


def test_the_quiz_has_no_more_questions_than_asked_for():
    """Further questions of the judge are left out."""
    quiz, judge = quiz_of(["\n".join(f"{n}: 问{n}" for n in range(1, 20)), "1: 甲"])
    assert len(quiz.questions) == QUESTIONS
    assert f"{QUESTIONS}道" in judge.generator.prompts[0].body


@pytest.mark.parametrize("replies", [["没有问题"], ["1: 谁?", "无法推断"], ["1: 谁?", "1: 无法推断"]])
def test_a_quiz_without_a_question_that_can_be_asked_is_a_failure(replies):
    """Without a numbered question that the gold text answers, the judge has failed."""
    with pytest.raises(ArmFailed, match="made no question that the gold text answers"):
        quiz_of(replies)


def test_chinese_is_cut_into_words_by_jieba(monkeypatch):
    """Words are jieba's, as in the papers' code; a missing package is named with its extra."""
    assert load_chinese_splitter()("北京大学的学生") == ["北京大学", "的", "学生"]
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(ConfigError, match=r"jieba is missing.*'\.\[families\]"):
        load_chinese_splitter()

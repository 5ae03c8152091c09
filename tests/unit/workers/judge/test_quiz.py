"""RAGQuestEval with a scripted judge: what counts as answered, and what a failure costs."""

import asyncio
import sys

import pytest

from ragbandit.shared.errors import ArmFailed, ConfigError, InvalidInput
from ragbandit.strategies.base import Prompt
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.workers.judge.checks import judge_templates
from ragbandit.workers.judge.rubric import (
    CANNOT_INFER,
    QUESTIONS,
    QUIZ_MEASURES,
    Quiz,
    QuizModel,
    chinese_words,
    made_quiz,
    quizzed,
)

QUIZ = Quiz(questions=("谁", "何时", "何地", "为何"), references=("张三", "三月 一日", "北京", CANNOT_INFER))
ZERO = dict.fromkeys(QUIZ_MEASURES, 0.0)


#: prompts of the user's own
OWN = {
    "crud_questions": "[body]\nAsk {limit} of: {text}",
    "crud_answer": f"[instructions]\nSay {CANNOT_INFER} where nothing is said.\n[body]\nRead: {{text}}\n{{questions}}",
}


def score_of(reply, *, quiz=QUIZ, text="文字", templates=None, **more):
    model = ScriptedGenerator([reply], **more)
    asked = QuizModel(generator=model, templates=judge_templates(templates or {}))
    return asyncio.run(quizzed(text, quiz=quiz, model=asked, cut=str.split)), model


def test_answers_are_compared_word_by_word():
    """Precision, recall and F1 are means over the answered questions; "cannot infer" is not answered."""
    score, judge = score_of("1: 张三\n2\uff1a三月 二日 下午 前\n3: 无法推断。")
    shares = {"answered": 2 / 3, "word_precision": (1 + 1 / 4) / 2, "word_recall": (1 + 1 / 2) / 2}
    assert score == pytest.approx({**shares, "word_f1": (1 + 1 / 3) / 2})
    assert "文字" in judge.prompts[0].body


def test_questions_without_an_answer_in_the_gold_text_are_not_asked():
    """A question whose reference is "cannot infer" is not in the prompt and not in the denominator."""
    score, judge = score_of("1: 张三\n2: 三月 一日\n3: 北京")
    assert "为何" not in judge.prompts[0].body
    assert score["answered"] == score["word_f1"] == 1.0


def test_answers_belong_by_number_not_by_place():
    """A missing, blank or shuffled line moves no other answer; what is missing is unanswered."""
    score, _ = score_of("好的。\n3: 北京\n2:\n1: 张三\n1: 李四\n9: 多余")
    assert score["answered"] == pytest.approx(2 / 3)
    assert score["word_f1"] == 1.0


def test_reply_without_numbers_answers_nothing():
    """A reply that cannot be read is no error: every share is 0."""
    assert score_of("我不知道")[0] == ZERO


def test_blank_text_counts_nothing_and_costs_nothing():
    """An empty answer of the system is 0 without asking the judge."""
    score, judge = score_of("1: 张三", text=" \n")
    assert score == ZERO
    assert not judge.requests


@pytest.mark.parametrize(("text", "why"), [("文字", "fails at call 1"), ("字 " * 5000, "room for")])
def test_a_judge_that_fails_or_cannot_read_the_text_says_why(text, why):
    """A text longer than the judge can read is not cut: as a failed judge it is a failure with its reason."""
    with pytest.raises(ArmFailed, match=why):
        score_of("", text=text, fail_at=[1])


@pytest.mark.parametrize(
    ("questions", "references", "named"),
    [(("a", "b"), ("c",), "2 questions and 1 references"), (("a",), ("“无法推断”。",), "no question has an answer")],
)
def test_quiz_that_cannot_be_asked_is_refused(questions, references, named):
    """Questions and references go in pairs, and at least one is answered by the gold text."""
    with pytest.raises(InvalidInput, match=named):
        Quiz(questions=questions, references=references)


def test_missing_jieba_is_named(monkeypatch):
    """Without the package the error says what to install."""
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(ConfigError, match=r"jieba is missing.*'\.\[crud\]"):
        chinese_words()


def quiz_of(replies, *, templates=None):
    model = ScriptedGenerator(replies)
    asked = QuizModel(generator=model, templates=judge_templates(templates or {}))
    return asyncio.run(made_quiz("张三在三月造了船。", model=asked)), model


def test_quiz_is_made_from_the_gold_text_alone():
    """The judge writes questions and answers them from the same text; one it cannot answer is kept and not asked."""
    quiz, judge = quiz_of(["好的\n1: 谁?\n2\uff1a何时?\n3: 谁?", "1: 张三\n2: 无法推断"])
    assert (quiz.questions, quiz.references) == (("谁?", "何时?"), ("张三", CANNOT_INFER))
    assert quiz.asked == (("谁?", "张三"),)
    assert all("张三在三月造了船" in prompt.body for prompt in judge.prompts)
    assert "1: 谁?\n2: 何时?" in judge.prompts[1].body


def test_quiz_has_no_more_questions_than_asked_for():
    """What a talkative judge writes beyond is left out."""
    quiz, judge = quiz_of(["\n".join(f"{n}: 问{n}" for n in range(1, 20)), "1: 甲"])
    assert len(quiz.questions) == QUESTIONS
    assert f"{QUESTIONS}道" in judge.prompts[0].body


@pytest.mark.parametrize("replies", [["没有问题"], ["1: 谁?", "无法推断"], ["1: 谁?", "1: 无法推断"]])
def test_quiz_without_a_question_that_can_be_asked_is_a_failure(replies):
    """No numbered question, or none that the gold text answers, is the judge's failure."""
    with pytest.raises(ArmFailed, match="made no question that the gold text answers"):
        quiz_of(replies)


def test_own_prompts_ask_for_quiz_and_answers(tmp_path):
    """A prompt of the user's own, as a text or in a file, takes the place of ours, with the same fields filled in."""
    file = tmp_path / "ask.txt"
    file.write_text(OWN["crud_questions"], encoding="utf-8")
    quiz, asked = quiz_of(["1: 谁?", "1: 张三"], templates={**OWN, "crud_questions": str(file)})
    _, judged = score_of("1: 张三", quiz=quiz, templates=OWN)
    assert asked.prompts[0] == Prompt(instructions="", body=f"Ask {QUESTIONS} of: 张三在三月造了船。")
    assert asked.prompts[1].body == "Read: 张三在三月造了船。\n1: 谁?"
    assert judged.prompts[0] == Prompt(
        instructions=f"Say {CANNOT_INFER} where nothing is said.", body="Read: 文字\n1: 谁?"
    )


def test_one_own_prompt_leaves_the_other():
    """Who overrides one of the two prompts keeps ours for the other."""
    ours, own = judge_templates({}), judge_templates({"crud_questions": OWN["crud_questions"]})
    assert own["crud_answer"] == ours["crud_answer"]
    assert own["crud_questions"] != ours["crud_questions"]


@pytest.mark.parametrize("part", ["[instructions]\n{say}\n", "[demonstration]\n{say}\n", "[prefix]\n{say}\n"])
def test_own_prompt_may_say_anywhere_what_stands_for_no_answer(part):
    """The user's prompt may contain the text for a missing answer at any place."""
    text = part.replace("{say}", CANNOT_INFER) + "[body]\n{demonstrations}{text}{questions}"
    assert judge_templates({"crud_answer": text})["crud_answer"].body == "{demonstrations}{text}{questions}"


@pytest.mark.parametrize(
    ("overrides", "field", "named"),
    [
        ({"crud_anwser": OWN["crud_answer"]}, "judge.templates.crud_anwser", "used: crud_questions, crud_answer"),
        ({"read_direct": "[body]\n{question}"}, "judge.templates.read_direct", "is not used"),
        ({"crud_questions": "[body]\n{text}"}, "judge.templates.crud_questions", "use exactly these: {limit}, {text}"),
        ({"crud_answer": f"[body]\n{CANNOT_INFER}{{text}}"}, "judge.templates.crud_answer", "{questions}, {text}"),
        ({"crud_answer": "[body]\n{text}{questions}"}, "judge.templates.crud_answer", f"have {CANNOT_INFER} in it"),
        ({"crud_questions": "{text}\n{limit}"}, "judge.templates.crud_questions", "before the first section"),
        ({"crud_questions": "nowhere.txt"}, "judge.templates.crud_questions", "'nowhere.txt' cannot be read"),
    ],
)
def test_own_prompt_that_cannot_be_used_is_refused(overrides, field, named):
    """Unknown names, wrong fields, unreadable files and a prompt without "cannot infer" are named by their setting."""
    with pytest.raises(ConfigError) as caught:
        judge_templates(overrides)
    assert caught.value.field == field
    assert named in str(caught.value)

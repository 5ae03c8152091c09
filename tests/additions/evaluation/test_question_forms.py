"""Question files of published data sets."""

import json

import pytest

from ragbandit.additions.evaluation.labelled_questions import LabelledQuestion, read_questions
from ragbandit.router.offline.logs.tables import read_unlabelled as read_hops
from ragbandit.shared.errors import InvalidInput

NO_DATE = {"day": "", "month": "", "year": ""}
FORMS = {
    "IRCoT": {
        "question_id": "2hop__1",
        "question_text": "Who?",
        "answers_objects": [{"spans": ["A. B.", "Ab"], "number": "", "date": NO_DATE}],
        "contexts": [{"idx": 0, "title": "T", "paragraph_text": "P", "is_supporting": True}],
        "dataset": "musique",
    },
    "IRCoT, a number and a date": {
        "question_id": "n",
        "question_text": "Who?",
        "answers_objects": [
            {"number": 7, "spans": [], "date": None},
            {"spans": None, "number": None, "date": {"day": "2", "month": "May", "year": 1901}},
        ],
    },
    "HotpotQA": {"_id": "5a8b", "question": "Who?", "answer": "yes", "type": "comparison", "level": "hard"},
    "HotpotQA of Hugging Face": {"id": "h", "question": "Who?", "answer": "X, Y", "level": "easy", "context": {}},
    "2WikiMultiHopQA": {"_id": "w", "question": "Who?", "answer": "A", "evidences": [["a", "b", "c"]]},
    "MuSiQue": {"id": "m", "question": "Who?", "answer": "A", "answer_aliases": ["B", "A"], "answerable": True},
    "NQ-open": {"question": "Who?", "answer": ["A", "B"]},
    "TriviaQA": {
        "QuestionId": "tc_2",
        "Question": "Who?",
        "Answer": {"Value": "A", "Aliases": ["A", "Aa"], "NormalizedAliases": ["a"], "Type": "WikipediaEntity"},
    },
    "TriviaQA of Hugging Face": {
        "question": "Who?",
        "question_id": "tc_3",
        "answer": {"aliases": ["B"], "normalized_aliases": ["b"], "value": "A", "type": "Numerical"},
    },
    "SQuAD of Hugging Face": {"id": "s", "question": "Who?", "answers": {"text": ["A", "A"], "answer_start": [1, 1]}},
    "FlashRAG": {"id": "f", "question": "Who?", "golden_answers": ["A", 1901]},
    "CRUD-RAG": {"ID": "c1", "event": "e", "news1": "n", "questions": "Who?", "answers": "A"},
    "ours before others": {
        "question": "Who?",
        "question_text": "no",
        "id": "o",
        "_id": "n",
        "answers": ["A"],
        "answer": "no",
    },
}
READ = {
    "IRCoT": ("2hop__1", ["A. B.", "Ab"]),
    "IRCoT, a number and a date": ("n", ["7", "2 May 1901"]),
    "HotpotQA": ("5a8b", ["yes"]),
    "HotpotQA of Hugging Face": ("h", ["X, Y"]),
    "2WikiMultiHopQA": ("w", ["A"]),
    "MuSiQue": ("m", ["A", "B"]),
    "NQ-open": ("row-1", ["A", "B"]),
    "TriviaQA": ("tc_2", ["A", "Aa", "a"]),
    "TriviaQA of Hugging Face": ("tc_3", ["A", "B", "b"]),
    "SQuAD of Hugging Face": ("s", ["A"]),
    "FlashRAG": ("f", ["A", "1901"]),
    "CRUD-RAG": ("c1", ["A"]),
    "ours before others": ("o", ["A"]),
}


def file_of(tmp_path, text, name="questions.jsonl"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("as_list", [False, True])
def test_each_form_is_read(tmp_path, form, as_list):
    """Question, id, right answers and data set of every declared form are read from JSON Lines and from a JSON list."""
    row, (key, answers) = FORMS[form], READ[form]
    file = file_of(tmp_path, json.dumps([row] if as_list else row))
    dataset = row.get("dataset")
    assert read_questions(file, family="ours") == (
        LabelledQuestion(id=key, question="Who?", answers=answers, dataset=dataset),
    )


def test_the_object_around_triviaqa_is_read(tmp_path):
    """TriviaQA's files are an object whose member Data is the list of questions."""
    file = file_of(tmp_path, json.dumps({"Data": [FORMS["TriviaQA"]], "Domain": "Web", "Version": 1.0}, indent=1))
    assert [row.id for row in read_questions(file, family="triviaqa")] == ["tc_2"]


def test_questions_of_dpr_are_read(tmp_path):
    """A line has a question, a tab and a list of Python, which may be quoted as in CSV; a bad line is named."""
    long = [f"name {number}" for number in range(2000)]
    text = f'who, is it\t[\'A\', "B\'s", \'c, d\']\nwhat\t"[\'he said ""no""\']"\nwhich\t{long}\n'
    rows = read_questions(file_of(tmp_path, text, "nq-test.qa.csv"), family="nq")
    assert [(row.question, row.answers) for row in rows] == [
        ("who, is it", ["A", "B's", "c, d"]),
        ("what", ['he said "no"']),
        ("which", long),
    ]
    for line, message in (("why\tbecause", "not a list"), ("why", "has 1 cells"), ("a\tb\t['c']", "has 3 cells")):
        with pytest.raises(InvalidInput, match=message) as refused:
            read_questions(file_of(tmp_path, text + line), family="nq")
        assert (refused.value.field or "").endswith(":4 answers")


def test_one_text_under_answer_may_be_what_a_system_answered(tmp_path):
    """Without a sign of a published data set a text under `answer` is right only if the family is of one."""
    file = file_of(tmp_path, '{"question": "Who?", "answer": "A"}')
    with pytest.raises(InvalidInput, match="no right answers") as refused:
        read_questions(file, family="ours")
    assert "--family" in (refused.value.remedy or "")
    assert read_questions(file, family="ours", unlabelled=True)[0].answers == ()
    assert read_questions(file, family="hotpotqa")[0].answers == ["A"]


@pytest.mark.parametrize("objects", ["Ab", [["Ab"]], {"spans": ["Ab"]}])
def test_answers_objects_of_another_shape_are_refused(tmp_path, objects):
    """Members of `answers_objects` are objects; the error names the field and the line."""
    with pytest.raises(InvalidInput) as refused:
        read_questions(
            file_of(tmp_path, json.dumps({"question_text": "Who?", "answers_objects": objects})), family="ours"
        )
    assert (refused.value.field or "").endswith("questions.jsonl:1 answers_objects")


def test_a_table_of_columns_may_have_their_names(tmp_path):
    """Delimited text may call its columns as IRCoT does, in any spelling."""
    file = file_of(tmp_path, "Question ID,Question Text,hops,answers\nq7,Who?,2,A\n")
    assert read_questions(file, family="ours")[0] == LabelledQuestion(id="q7", question="Who?", answers=["A"], hops=2)
    assert [(row.id, row.question, row.hops) for row in read_hops(file)] == [("q7", "Who?", 2)]

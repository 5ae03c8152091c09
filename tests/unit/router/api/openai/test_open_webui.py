"""Open WebUI's background tasks: which requests are some, and what they get."""

import json
from pathlib import Path

import pytest
from starlette.datastructures import Headers

from ragbandit.router.api.openai.messages import turns_of
from ragbandit.router.api.openai.open_webui import background_task, links_of, task_answer
from ragbandit.shared.types import Message

SENT = json.loads((Path(__file__).parents[4] / "data" / "open_webui" / "requests.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("task", sorted(SENT))
def test_templates(task):
    """Each template is known by its opening words, and a chat is none of them."""
    found = background_task(Headers({}), turns=turns_of(SENT[task]["messages"]))
    assert found == (None if task == "chat" else task)


@pytest.mark.parametrize(
    "question",
    [
        "### Task: sort this list",
        "Generate a poem",
        "What does 'Generate 1-3 broad tags categorizing' mean?",
        "Suggest three questions",
        "Available Tools: a hammer. What for?",
    ],
)
def test_questions_that_are_no_tasks(question):
    """A question of a user that resembles a template is a question."""
    assert background_task(Headers({}), turns=[Message(role="user", text=question)]) is None


def test_an_unknown_task():
    """A task of a newer Open WebUI makes no decision either: an empty object."""
    headers = Headers({"X-OpenWebUI-Task": "dream_generation"})
    task = background_task(headers, turns=[Message(role="user", text="?")])
    assert task == "dream_generation"
    assert task_answer(task, turns=[]) == "{}"


@pytest.mark.parametrize(
    ("history", "title"),
    [
        ("USER: Who wrote Dracula?\nASSISTANT: Bram Stoker", "Who wrote Dracula"),
        ("USER: Wer schrieb „Faust“, und wann genau war das eigentlich?", "Wer schrieb „Faust“, und wann genau"),
        ("USER: " + "x" * 200, "x" * 60),
        ("", "New chat"),
    ],
)
def test_titles(history, title):
    """A title is the first words that the user wrote, not too long."""
    prompt = f"### Task:\nGenerate a concise, 3-5 word title\n<chat_history>\n{history}\n</chat_history>"
    made = task_answer("title_generation", turns=[Message(role="user", text=prompt)])
    assert json.loads(made) == {"title": title}


@pytest.mark.parametrize("value", ["", " ", "{{MESSAGE_ID}}", "a b", "x" * 129, "\u00e9"])
def test_links_that_are_none(value):
    """What is no id makes no link."""
    assert links_of(Headers(raw=[(b"x-openwebui-message-id", value.encode("latin-1"))])) == {}

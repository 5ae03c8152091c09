"""The benchmark of chats by size: how cells are written, and the conversations of each door."""

import json
import os

import pytest

from benchmarks.chat_sizes.cells import DEFAULT, Cell, Setup, by_setup
from benchmarks.chat_sizes.conversations import Conversation
from benchmarks.chat_sizes.measures import chats_of
from benchmarks.chat_sizes.model_server import Answer, order
from benchmarks.chat_sizes.processor import processor_ms

DOORS = ("chat", "messages", "responses")


@pytest.mark.parametrize("text", [*DEFAULT, "responses:20:streamed:pieces=300:gap=0.5:callers=16:last=result"])
def test_a_cell_is_read_as_it_is_written(text):
    """The text of a cell makes the same cell again."""
    cell = Cell.read(text)
    assert Cell.read(str(cell)) == cell
    assert set(str(cell).split(":")) == set(text.split(":")) - {"gap=0"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("chat:100", "DOOR:KILOBYTES:FORM"),
        ("mail:100:whole", "door is one of chat, messages, responses"),
        ("chat:100:half", "form is one of whole, streamed"),
        ("chat:big:whole", "big"),
        ("chat:1:whole:callers=0", "positive"),
        ("chat:1:whole:colour=red", "'colour'"),
        ("chat:1:whole:gap=1:gap=2", "'gap'"),
    ],
)
def test_a_wrong_cell_names_its_field(text, named):
    """An error has the cell and what is wrong in it."""
    with pytest.raises(ValueError, match=named) as error:
        Cell.read(text)
    assert text in str(error.value)


def test_cells_of_one_setup_are_measured_together():
    """The processes of a setup are started once, whatever the order of its cells."""
    texts = ("chat:1:whole", "chat:1:whole:unit=task", "messages:1:whole")
    found = by_setup([Cell.read(text) for text in texts])
    assert {setup: len(cells) for setup, cells in found.items()} == {Setup(): 2, Setup(unit="task"): 1}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kilobytes", [20, 100, 400])
def test_a_conversation_has_its_size(door, kilobytes):
    """A request of an agent has the size of its cell, ends with the order, and shares no result with another one."""
    cell = Cell.read(f"{door}:{kilobytes}:streamed")
    one, other = (Conversation.made(cell, name=name) for name in ("one", "other"))
    body = one.body()
    assert len(body) == pytest.approx(kilobytes * 1000, rel=0.05)
    sent = json.loads(body)
    history = sent["input" if door == "responses" else "messages"]
    assert order(cell) in json.dumps(history[-1])
    assert (sent["stream"], len(sent["tools"])) == (True, 20)
    results = [{step.result for step in made.steps if step.result} for made in (one, other)]
    assert results[0]
    assert not results[0] & results[1]


@pytest.mark.parametrize("door", DOORS)
def test_a_conversation_grows_by_a_call_and_its_result(door):
    """The next request has the call of the reply with its id, and its result with the order of the next reply."""
    cell = Cell.read(f"{door}:20:whole:last=result:pieces=2")
    made = Conversation.made(cell, name="one")
    before, call = made.body(), "call_a" + "7" * 23
    made.add(Answer.read(f"0@5 1@6 {call}".encode(), cell=cell), number=1)
    history = json.loads(made.body())["input" if door == "responses" else "messages"]
    said, result = json.dumps(history[-2]), json.dumps(history[-1])
    assert ("0@5 1@6 " in json.dumps(history[-3:-1])) == (call in said) == (call in result) == (order(cell) in result)
    assert len(made.body()) > len(before)


def test_a_small_chat_has_no_history():
    """A chat of 0.3 kB asks one question, and each time a new one."""
    made = Conversation.made(Cell.read("chat:0.3:whole:pieces=1"), name="one")
    before = json.loads(made.body())["messages"]
    made.add(Answer(text="0@5 ", call=""), number=1)
    after = json.loads(made.body())["messages"]
    assert (len(before), len(after), before == after) == (1, 1, False)


def test_missing_pieces_are_an_error():
    """A reply with fewer pieces than asked for, or without its call, is not measured."""
    for form, reply in (("pieces=2", b"0@5 "), ("pieces=1:last=result", b"0@5 ")):
        with pytest.raises(ValueError, match="pieces came"):
            Answer.read(reply, cell=Cell.read(f"chat:1:whole:{form}"))


@pytest.mark.parametrize(
    ("more", "chats"), [("", 20), (":pieces=300:gap=2", 4), (":pieces=300:gap=20", 1), (":callers=16", 2)]
)
def test_a_block_takes_seconds(more, chats):
    """A caller asks less often in a block if a reply takes long."""
    assert chats_of(Cell.read(f"chat:1:whole{more}"), most=20) == chats


def test_processor_time_grows():
    """The processor time of a process contains what it has just done."""
    before = processor_ms(os.getpid())
    sum(number * number for number in range(200_000))
    assert processor_ms(os.getpid()) - before > 1.0

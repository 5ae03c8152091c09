"""The benchmark of chats by size runs: a model server, this tree and a base in turns, a table and its JSON."""

import json
import sqlite3

import pytest

from benchmarks.chat_sizes.__main__ import main
from benchmarks.chat_sizes.cells import Cell
from benchmarks.chat_sizes.gateways import ROOT, Source, exported, model_server, started
from benchmarks.chat_sizes.measures import await_start, talk

pytestmark = pytest.mark.timeout(300)


def test_the_table(tmp_path, capsys):
    """In front of a server of Messages, each cell has a line with its rounds; LiteLLM is skipped with a word."""
    cells = ("messages:20:whole:server=messages", "chat:0.3:streamed:pieces=40:gap=1:callers=2:server=messages")
    file = tmp_path / "cells.json"
    given = ["--cells", ",".join(cells), "--rounds", "2", "--chats", "2", "--json", str(file)]
    main([*given, "--beside", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "LiteLLM is skipped" in printed
    lines = json.loads(file.read_text())
    assert [(line["cell"], line["gateway"], len(line["rounds"])) for line in lines] == [
        (cell, "this tree", 2) for cell in cells
    ]
    for line in lines:
        assert min(line["rounds"]) > 0.0
        assert f"| {line['cell']} | this tree |" in printed
    assert [len(line["block"]["later"]) for line in lines] == [0, 2 * 2 * 2 * 39]


def test_every_door(tmp_path):
    """Through each door, whole and streamed, a loop of tools is one decision."""
    cells = [
        Cell.read(f"{door}:20:{form}:last=result:unit=task")
        for door in ("chat", "messages", "responses")
        for form in ("whole", "streamed")
    ]
    source = Source(name="this tree", folder=ROOT)
    with model_server() as model, started(source, setup=cells[0].setup, model=model, folder=tmp_path) as gateway:
        await_start(gateway, cell=cells[0])
        for number, cell in enumerate(cells):
            block = talk(gateway, cell=cell, name=f"n{number}", chats=2)
            assert (len(block.walls), len(block.first)) == (2, 2 * (cell.form == "streamed"))
    with sqlite3.connect(next(tmp_path.glob("this-tree/data/*.db"))) as rows:
        turns = rows.execute("select count(*) from decisions where turn_of is not null").fetchone()[0]
    assert turns == len(cells)


def test_a_revision_is_exported(tmp_path):
    """The files of a revision and its generated client are there; an unknown revision is named."""
    source = exported("HEAD", folder=tmp_path)
    assert (source.folder / "ragbandit" / "router").is_symlink()
    assert (source.folder / "ragbandit" / "client" / "client.py").exists()
    with pytest.raises(SystemExit, match="no-such-revision"):
        exported("no-such-revision", folder=tmp_path)

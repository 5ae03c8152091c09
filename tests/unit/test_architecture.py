"""The tree is as docs/architecture.md says."""

import re
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
from typer.testing import CliRunner

from ragbandit.router.offline.logs import write_rows
from ragbandit.workers.cli import app
from tests.support.logs.replay_logs import lived_rows

ROOT = Path(__file__).parents[2]


def test_no_circles():
    """No two files of the product import each other in a circle, also not by imports inside functions."""
    graph = grimp.build_graph("ragbandit", exclude_type_checking_imports=True)
    packages = {".".join(name.split(".")[:-1]) for name in graph.modules}  # their own __init__ is left out
    files = graph.modules - packages
    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) & files for name in files}).prepare()


def test_named_files_exist():
    """Every file and folder of ours that docs/architecture.md names is there."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`((?:router|strategies|workers|ragbandit|migrations|tests)/[\w./]*)`", text))
    assert len(names) > 30
    assert [name for name in sorted(names) if not (ROOT / name).exists()] == []


def test_rooms_are_described():
    """docs/architecture.md has a row for every room of the product."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = [
        f"{part}/{folder.name}/"
        for part in ("router", "strategies", "workers", "ragbandit")
        for folder in (ROOT / part).iterdir()
        if folder.is_dir() and not folder.is_symlink() and any(folder.glob("*.py"))
    ]
    assert [room for room in sorted(rooms) if f"| `{room}`" not in text and f"`{room}`" not in text] == []


def test_a_replay_walks_through_the_files_that_are_named(tmp_path, monkeypatch):
    """A row of a Parquet log passes through a few files, and docs/architecture.md names all of them."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    way, rest = text.split("**A row of a Parquet log")[1].split("\n## ")[0].split("Not on this way")
    named, others = (set(re.findall(r"`(router/[\w/]+\.py)`", part)) for part in (way, rest))
    write_rows(tmp_path / "log.parquet", lived_rows(60))
    monkeypatch.chdir(tmp_path)
    entered = set()
    sys.setprofile(lambda frame, event, _: entered.add(frame.f_code) if event == "call" else None)
    try:
        result = CliRunner().invoke(app, ["replay", "--log", "log.parquet"])
    finally:
        sys.setprofile(None)
    walked = {code.co_filename.split("/ragbandit/")[-1] for code in entered if code.co_name != "<module>"}
    assert result.exit_code == 0, result.output
    offline = {name for name in walked if name.startswith("router/offline/")}
    assert sorted(offline - named - others) == []
    assert sorted(named - walked) == []
    assert len(named) <= 12

"""The tree is as docs/architecture.md says."""

from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]


def test_no_circles():
    """No two files of the product import each other in a circle, also not by imports inside functions."""
    graph = grimp.build_graph("ragbandit", exclude_type_checking_imports=True)
    packages = {".".join(name.split(".")[:-1]) for name in graph.modules}  # their own __init__ is left out
    files = graph.modules - packages
    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) & files for name in files}).prepare()


def test_rooms_are_described():
    """docs/architecture.md has a row for every room of router/, strategies/ and ragbandit/."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = [
        f"{part}/{folder.name}/"
        for part in ("router", "strategies", "ragbandit")
        for folder in (ROOT / part).iterdir()
        if folder.is_dir() and not folder.is_symlink() and any(folder.glob("*.py"))
    ]
    assert [room for room in sorted(rooms) if f"| `{room}`" not in text and f"`{room}`" not in text] == []

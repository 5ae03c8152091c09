"""`ragbandit/__init__.py` imports the rooms for users, so that no room may import it: that would be a circle."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FRONT = re.compile(r"^\s*(?:import ragbandit$|import ragbandit as|from ragbandit import)", re.MULTILINE)


def test_no_room_imports_the_front_of_the_package():
    """Only examples, documentation and tests import `ragbandit` itself, as users do."""
    rooms = (
        "router",
        "strategies",
        "workers",
        "migrations",
        *(f"ragbandit/{room}" for room in ("shared", "client", "additions")),
    )
    files = [file for room in rooms for file in (ROOT / room).rglob("*.py")]
    assert len(files) > 300
    assert [str(file.relative_to(ROOT)) for file in files if _FRONT.search(file.read_text(encoding="utf-8"))] == []

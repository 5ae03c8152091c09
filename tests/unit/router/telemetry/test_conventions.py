"""The code and the documentation have the same names of spans and attributes."""

import re
from pathlib import Path

from ragbandit.router.telemetry import conventions

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "telemetry.md"


def test_the_page_lists_every_name():
    """The table of docs/telemetry.md has each of our own names once, and no other."""
    listed = re.findall(r"^\| `([a-z_.]+)` \|", PAGE.read_text("utf-8"), flags=re.M)
    names = [value for name, value in vars(conventions).items() if name.isupper() and value.startswith("ragbandit.")]
    assert sorted(listed) == sorted(names)

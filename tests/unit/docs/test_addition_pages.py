"""Pages of additions: an addition brings its page, and no page of the core has to name it."""

from docs.toctree import with_toctrees
from tests.support.pages import table_lines

INDEX = """# Documentation

## Build

- [mcp.md](mcp.md): agents.
"""


def test_pages_of_additions_are_in_the_table_of_contents():
    """Pages of additions that the index does not list have a list of their own; one that it lists stays there."""
    table = with_toctrees(INDEX, of_additions=["voting.md", "mcp.md", "hurry.md"])
    assert table.endswith("```{toctree}\n:hidden:\n:caption: Additions\n\n/docs/hurry\n/docs/voting\n```\n")
    assert table.count("/docs/mcp\n") == 1
    assert with_toctrees(INDEX, of_additions=["mcp.md"]) == with_toctrees(INDEX)


def test_tables_are_found_by_their_first_column():
    """The lines of all tables of arms on a page are read, and none of its other tables."""
    page = "| arm | what |\n|---|---|\n| `a` | 1 |\n| `b` | 2 |\n\n| param | default |\n|---|---|\n| `x` | 3 |\n"
    assert table_lines(page + "\n| arm | what |\n|---|---|\n| `c` | 4 |", first="arm") == [
        "| `a` | 1 |",
        "| `b` | 2 |",
        "| `c` | 4 |",
    ]

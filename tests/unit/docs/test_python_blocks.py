"""The Python code of every page passes the linter as it is printed, so that a reader who copies it passes it too."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: fenced blocks, and indented ones that begin with an import, a definition or a decorator
_BLOCK = re.compile(
    r"^( *)```python\n(?P<fenced>.*?)^ *```"
    r"|(?<=\n\n)(?P<indented> {4}(?:import |from |def |async def |class |@)[^\n]*\n(?:(?: {4}[^\n]*)?\n)*)",
    re.DOTALL | re.MULTILINE,
)
#: an example prints, continues the example above it, and may leave out docstrings and types
_OF_EXAMPLES = "ANN,ARG,D1,F821,T20"
#: code of an addition stands in this repository, where the linter asks for types
_OF_ADDITIONS = "D101,D102,D103"


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    """Folders with a file for each block, by the rules that do not hold in it."""
    folders = {rules: tmp_path_factory.mktemp("blocks") for rules in (_OF_EXAMPLES, _OF_ADDITIONS)}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        in_additions = text.find("\n## An addition\n") if page.name == "extend.md" else -1
        for found in _BLOCK.finditer(text):
            rules = _OF_ADDITIONS if 0 <= in_additions < found.start() and found["fenced"] else _OF_EXAMPLES
            line = text.count("\n", 0, found.start()) + 1
            name = f"{page.relative_to(ROOT).with_suffix('').as_posix().replace('/', '_')}_{line}.py"
            (folders[rules] / name).write_text(textwrap.dedent(found["fenced"] or found["indented"]).strip("\n") + "\n")
    return folders


def ruff(*words):
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *words, "--config", str(ROOT / "pyproject.toml"), "--no-cache"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    return done.stdout + done.stderr if done.returncode else ""


@pytest.mark.parametrize("rules", [_OF_EXAMPLES, _OF_ADDITIONS])
def test_the_code_of_the_pages_is_formatted_and_linted(blocks, rules):
    """No block has a fault that `make quick` would find in a file; the name of the file has the page and the line."""
    assert ruff("check", "--output-format", "concise", "--extend-ignore", rules, str(blocks[rules])) == ""
    assert ruff("format", "--check", str(blocks[rules])) == ""


def test_blocks_of_both_kinds_are_found(blocks):
    """Fenced and indented blocks are read, and those of additions are linted as code of this repository."""
    names = {rules: [file.name.rpartition("_")[0] for file in folder.iterdir()] for rules, folder in blocks.items()}
    assert len(names[_OF_EXAMPLES]) > 30
    assert {*names[_OF_ADDITIONS]} == {"docs_extend"}
    assert names[_OF_EXAMPLES].count("docs_extend") > 2

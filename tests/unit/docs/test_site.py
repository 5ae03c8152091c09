"""The site of the documentation: every page is in its table of contents, and what the first pages show can be done."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from docs.toctree import sections, with_toctrees
from ragbandit.examples import concepts

from .test_pages import PAGES, ROOT, text_of

FIRST_PAGES = ("README.md", "docs/tutorial.md", "docs/operations.md")


def test_every_page_is_in_the_table_of_contents():
    """Every page of the documentation stands once in the contents that the site makes of its index."""
    found = [page for pages in sections(text_of("docs/index.md")).values() for page in pages]
    paths = [(ROOT / "docs" / page).resolve().relative_to(ROOT).as_posix() for page in found]
    assert sorted(paths) == sorted(set(PAGES) - {"docs/index.md"})


def test_the_contents_name_pages_from_the_root():
    """A hidden table for each section, with pages as the repository's root sees them."""
    made = with_toctrees("# D\n\n## Begin\n\n- [R](../README.md): what it is.\n- [c](a/b.md): what else.\n")
    assert ":caption: Begin\n\n/README\n/docs/a/b\n```" in made


def commands(page):
    """Every command line of ours in the fenced and indented blocks of a page, continued lines as one."""
    text = text_of(page).replace("\\\n", " ")
    lines = [line for block in re.findall(r"```bash\n(.*?)```", text, flags=re.S) for line in block.splitlines()]
    lines += [line.strip() for line in re.findall(r"^ {4}ragbandit .*$", text, flags=re.M)]
    return [line.partition("  #")[0].strip() for line in lines if line.strip()]


@pytest.mark.parametrize("page", FIRST_PAGES)
def test_commands_take_what_is_shown(page):
    """Every `ragbandit` line of the first pages is a verb with options and arguments that it has; files that they name
    are there.
    """
    from ragbandit.workers.cli import app

    root, wrong = get_command(app), []
    shown = [line for line in commands(page) if line.startswith(("ragbandit ", "python -m "))]
    for line in shown:
        words = shlex.split(line)
        if words[0] == "python":
            wrong += [] if (ROOT / (words[2].replace(".", "/") + ".py")).exists() else [line]
            continue
        command, rest = root, words[1:]
        while rest and rest[0] in getattr(command, "verbs", {}):
            command, rest = command.load(rest[0]), rest[1:]
        options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        wrong += [line for word in rest if word.startswith("-") and word not in {*options, "--help"}]
        wrong += [line for word in rest if word.startswith("examples/") and not (ROOT / word).exists()]
    assert shown
    assert wrong == []


def test_the_example_of_the_concepts_prints_the_page():
    """Every line that `ragbandit.examples.concepts` prints stands in docs/concepts.md, and no other number does."""
    page = text_of("docs/concepts.md")
    assert [line for line in concepts.lines() if line not in page] == []
    blocks = re.findall(r"```text\n(.*?)```", page, flags=re.S)
    assert "".join(blocks).splitlines() == concepts.lines()


def test_alerts_name_metrics_that_are_exported():
    """Every metric in an expression of docs/alerts.md is one of ours."""
    exported = "\n".join(file.read_text("utf-8") for file in Path(ROOT, "router", "api").rglob("*.py"))
    named = set(re.findall(r"ragbandit_[a-z_]+", text_of("docs/alerts.md")))
    ends = re.compile(r"_(total|bucket|sum|count)$")
    assert len(named) > 10
    assert {
        name for name in named if f'"{name}"' not in exported and f'"{ends.sub("", name)}"' not in exported
    } == set()

"""Names on the pages exist. Links and anchors are checked by Sphinx (`make lint`)."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

from ragbandit import Client, Router
from ragbandit.examples import concepts
from ragbandit.router.config.settings import Settings
from ragbandit.workers.cli import app
from tests.support.additions import is_offered
from tests.support.pages import names_without

ROOT = Path(__file__).parents[3]
PAGES = {
    page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8")
    for page in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
    ]
}
#: options of Vowpal Wabbit and Git
OPTIONS_OF_OTHERS = {"--cb", "--dsjson", "--follow", "--help"}


@cache
def source_of(pattern):
    return "\n".join(file.read_text(encoding="utf-8") for file in ROOT.glob(pattern))


@cache
def options_of(command):
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*(options_of(command.load(verb)) for verb in getattr(command, "verbs", ())))


@cache
def ragbandit_command():
    return get_command(app)


def is_command(line):
    """Whether `ragbandit` has the verb of this command line, and the verb its options, or its addition is missing."""
    command = ragbandit_command()
    if not is_offered(line.removeprefix("ragbandit ")):
        return True
    for word in shlex.split(line, comments=True)[1:]:
        if word in getattr(command, "verbs", ()):
            command = command.load(word)
        elif re.match(r"--[a-z]", word) and word.partition("=")[0] not in options_of(command) | {"--help"}:
            return False
    return bool(command.params)


def is_setting(name):
    section, key = name.split(".")
    known = getattr(Settings.model_fields[section].annotation, "model_fields", {key})
    return key in known or not names_without().isdisjoint((key, name))


def is_option(name):
    sources = map(source_of, ("benchmarks/**/*.py", "examples/**/*.py"))
    return name in options_of(ragbandit_command()) | OPTIONS_OF_OTHERS or any(f'"{name}"' in text for text in sources)


def is_metric(name):
    sources = source_of("router/api/**/*.py") + source_of("ragbandit/additions/**/*.py")
    return name in names_without() or f'"{re.sub(r"_(total|bucket|sum|count)$", "", name)}' in sources


def is_module(name):
    """Whether it is a module, or a name that one contains."""
    place = ROOT.joinpath(*name.split("."))
    files = [place.parent.with_suffix(".py"), place.parent / "__init__.py"]
    named = (file for file in files if file.exists() and re.search(rf"\b{place.name}\b", file.read_text("utf-8")))
    return place.is_dir() or place.with_suffix(".py").exists() or any(named)


NAMES = {
    "command": (r"^ {4}(ragbandit [a-z].*?)(?:\s+[|>#&\\].*)?$|`(ragbandit [a-z][^`\n]*)`", is_command),
    "make target": (r"^ {4}make ([a-z-]+)|`make ([a-z-]+)", lambda name: f"\n{name}:" in source_of("Makefile")),
    "setting": (rf"`((?:{'|'.join(Settings.model_fields)})\.[a-z_]+)(?=[`:. =])", is_setting),
    "option": (r"`(--[a-z][a-z-]+)[`= ]", is_option),
    "metric": (r"\b(ragbandit_[a-z_]+)(?=[`\[{ )])", is_metric),
    "method of Router": (r"\b(?:Router|router)\.([a-z_]+)\(", lambda name: hasattr(Router, name)),
    "method of Client": (r"\bClient\.([a-z_]+)\(", lambda name: hasattr(Client, name)),
    "path": (
        r"`((?:router|strategies|workers|migrations|tests|benchmarks|examples|docs|deploy)/[\w./-]*)[`:]",
        lambda name: (ROOT / name).exists(),
    ),
    "module": (r"\b(ragbandit\.(?:router|strategies|workers|testing|integrations)(?:\.\w+)+)", is_module),
}


@pytest.mark.parametrize("kind", NAMES)
def test_names_on_the_pages_exist(kind):
    """Every command, setting, metric, method, path and module that a page names exists."""
    pattern, exists = NAMES[kind]
    uses = [
        (page, next(filter(None, match.groups())))
        for page, text in PAGES.items()
        for match in re.finditer(pattern, text, flags=re.M)
    ]
    assert uses
    assert [use for use in uses if not exists(use[1])] == []


def test_the_example_of_the_concepts_prints_the_page():
    """docs/concepts.md shows exactly what `ragbandit.examples.concepts` prints."""
    blocks = re.findall(r"```text\n(.*?)```", PAGES["docs/concepts.md"], flags=re.S)
    assert "".join(blocks).splitlines() == concepts.lines()

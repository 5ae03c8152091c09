"""Every page: what it links to and what it names by path or command is there, and the index lists them all."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.cases import every_case

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
)
#: pages about the present state
CURRENT = [page for page in PAGES if page != "CHANGELOG.md"]
#: the top level of the repository, as a path on a page begins
ROOMS = ("router", "strategies", "workers", "migrations", "tests", "benchmarks", "examples", "docs", "deploy")
#: those that are installed
PACKAGES = ("router", "strategies", "workers", "migrations", "examples")
#: a module, or a name within one
NAMED = rf"\bragbandit\.(?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+"
#: options of other programs that a page shows
OPTIONS_OF_OTHERS = {"--cb", "--dsjson", "--follow", "--help"}  # Vowpal Wabbit, git log, all


def _options(command):
    """Every option of a command and of those under it."""
    for name in getattr(command, "verbs", {}):
        yield from _options(command.load(name))
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)


@cache
def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def prose(text):
    """A page without its blocks of code."""
    return re.sub(r"```.*?```", "", text, flags=re.S)


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(text), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere():
    """Every relative link and image is a file of the repository, and every anchor a heading of its page."""
    with every_case() as case:
        for page in PAGES:
            with case(page):
                lost = []
                for target in re.findall(r"\]\(([^)\s]+)\)", prose(text_of(page))):
                    if re.match(r"https?:|mailto:", target):
                        continue
                    path, _, anchor = target.partition("#")
                    file = (ROOT / page).parent / path if path else ROOT / page
                    if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
                        lost.append(target)
                assert lost == []


def test_paths_are_there():
    """Every file, folder and module that a page names in code font exists."""
    with every_case() as case:
        for page in CURRENT:
            with case(page):
                named = re.findall(rf"`((?:{'|'.join(ROOMS)})/[\w./-]*)(?:::\w+)?`", text_of(page))
                imported = re.findall(r"^from (ragbandit[\w.]*) import \(?([\w, ]+)", text_of(page), flags=re.M)
                names = [
                    f"{module}.{name.strip()}"
                    for module, found in imported
                    for name in found.split(",")
                    if name.strip()
                ]
                modules = re.findall(NAMED, text_of(page)) + names
                files = [name for name in named if not (ROOT / name).exists()]
                assert files == []
                assert [module for module in modules if not _is_there(module)] == []


@pytest.mark.parametrize("room", PACKAGES)
def test_paths_in_the_source_are_there(room):
    """Every file and module that a docstring, a comment or a message of the packages names exists."""
    lost = []
    for source in (ROOT / room).rglob("*.py"):
        text = source.read_text(encoding="utf-8")
        files = re.findall(rf"(?<![\w/.:])((?:{'|'.join(ROOMS)})/[\w./-]+\.(?:py|md|jsonl?|yaml))\b", text)
        names = re.findall(NAMED, text)
        lost += [(source.name, name) for name in files if not (ROOT / name).exists()]
        lost += [(source.name, name) for name in names if not _is_there(name)]
    assert lost == []


@cache
def _is_there(name):
    """Whether it is a module, a folder of modules, or a name that one of them defines, imports or hands on."""
    place = ROOT.joinpath(*name.split("."))
    if place.is_dir() or place.with_suffix(".py").exists():
        return True
    module, package = place.parent.with_suffix(".py"), place.parent / "__init__.py"
    if package.exists():
        return re.search(rf"\b{place.name}\b", package.read_text("utf-8")) is not None
    if module.exists():
        return re.search(rf"^(?! ).*\b{place.name}\b|^    {place.name},$", module.read_text("utf-8"), re.M) is not None
    return place.parent.name[:1].isupper() and _is_there(name.rpartition(".")[0])  # a member of a class


def test_verbs_are_those_of_the_command():
    """Every `ragbandit` verb that a page shows is one of the command's."""
    from ragbandit.router.cli.console import VerbGroup
    from ragbandit.workers.cli import VERBS

    groups = {name: set(verb.verbs) for name, verb in VERBS.items() if isinstance(verb, VerbGroup)}
    with every_case() as case:
        for page in CURRENT:
            with case(page):
                named = re.findall(r"(?:^ {4}|`)ragbandit ([a-z]+)(?: ([a-z]+))?", text_of(page), flags=re.M)
                assert {verb for verb, _ in named} <= set(VERBS)
                assert [pair for pair in named if pair[1] and pair[1] not in groups.get(pair[0], {pair[1]})] == []


def test_make_targets_are_there():
    """Every `make` target that a page shows is one of the Makefile's."""
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), flags=re.M))
    with every_case() as case:
        for page in CURRENT:
            with case(page):
                assert set(re.findall(r"(?:^ {4}|`)make ([a-z-]+)", text_of(page), flags=re.M)) <= targets


def test_settings_are_those_of_the_service():
    """Every setting that a page names by its dotted key can be set."""
    from ragbandit.router.config.settings import Settings

    sections = {name: field.annotation for name, field in Settings.model_fields.items()}
    models = {name: kind for name, kind in sections.items() if hasattr(kind, "model_fields")}
    with every_case() as case:
        for page in CURRENT:
            with case(page):
                wrong = [
                    f"{section}.{key}"
                    for section, key in re.findall(rf"`({'|'.join(models)})\.([a-z_]+)(?=[`:. =])", text_of(page))
                    if key not in models[section].model_fields
                ]
                assert wrong == []


def test_the_index_lists_every_page():
    """docs/index.md links to every page of the documentation once, with a sentence."""
    listed = re.findall(r"^[-|] *\[[^\]]+\]\(([^)#]+)\)[:, |]+\w.{15,}", text_of("docs/index.md"), flags=re.M)
    pages = {(ROOT / "docs" / target).resolve().relative_to(ROOT).as_posix() for target in listed}
    assert len(listed) == len(set(listed))
    assert set(PAGES) - {"docs/index.md", "README.md"} <= pages


def test_metrics_are_those_of_the_service():
    """Every metric that a page names is one that /metrics has."""
    source = text_of("router/api/metrics.py")
    made = set(re.findall(r'"(ragbandit_\w+)"', source))
    with every_case() as case:
        for page in CURRENT:
            with case(page):
                named = {name.removesuffix("_total") for name in re.findall(r"`(ragbandit_\w+)", text_of(page))}
                assert named <= {name.removesuffix("_total") for name in made}


def test_methods_are_there():
    """Every method of Router and Client that a page names can be called."""
    from ragbandit import Client, Router

    kinds = {"Router": Router, "Client": Client}
    with every_case() as case:
        for page in CURRENT:
            with case(page):
                named = re.findall(r"`(?:ragbandit\.)?(Router|Client)\.(\w+)", text_of(page))
                named += [("Router", name) for name in re.findall(r"\brouter\.([a-z_]+)\(", text_of(page))]
                assert [name for kind, name in named if not hasattr(kinds[kind], name)] == []


def test_options_are_there():
    """Every option that a page names in code font is one of a verb, or of a script of the repository."""
    from typer.main import get_command

    from ragbandit.workers.cli import app

    scripts = [*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("examples/**/*.py")]
    known = set(_options(get_command(app))).union(
        *(re.findall(r'"(--[a-z-]+)"', script.read_text("utf-8")) for script in scripts)
    )
    with every_case() as case:
        for page in CURRENT:
            with case(page):
                named = set(
                    re.findall(
                        r"(?<=[` ])--[a-z][a-z-]+",
                        " ".join(re.findall(r"`[^`\n]*`|^ {4}.*$", text_of(page), flags=re.M)),
                    )
                )
                assert named - known - OPTIONS_OF_OTHERS == set()

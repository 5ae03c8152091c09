"""Additions: folders that the core finds by name and never imports, so that each can be deleted."""

import ast
import subprocess
import sys
from contextlib import suppress
from dataclasses import fields
from importlib.util import find_spec, module_from_spec
from pathlib import Path

import pytest

import ragbandit
from ragbandit import Router
from ragbandit.router.config import error_words
from ragbandit.router.config.error_words import _OF_ADDITIONS
from ragbandit.router.operation.findings import findings_of_settings
from ragbandit.router.policies import built_in_policies
from ragbandit.shared import additions as module
from ragbandit.shared.additions import PACKAGE, Addition, additions, faults, load_offered, offered_places, surfaces
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.strategies.registry import built_in_arms
from ragbandit.strategies.retrievers.corpus import read_folder

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "ragbandit" / "additions"
FRONT = ROOT / "ragbandit" / "__init__.py"
#: fields of `Addition` that offer no name; the others are hooks under which a name is offered once
_NOT_OFFERED = ("arm_parts", "surfaces", "sections", "needs", "pages")
HOOKS = [one.name for one in fields(Addition) if one.name not in _NOT_OFFERED]


def imports_of(file):
    """The modules that a file imports, also inside functions, and the names that it imports from them."""
    return imports_in(ast.parse(file.read_text("utf-8")))


def imports_in(tree):
    nodes = [*ast.walk(tree)]
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names = {node.module or "" for node in froms} | {
        f"{node.module}.{one.name}" for node in froms for one in node.names
    }
    return names | {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}


def imports_at_run_time(file):
    """As `imports_of`, without what the front of the package imports only for type checkers, and at its first use."""
    tree = ast.parse(file.read_text("utf-8"))
    kept = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    return imports_in(ast.Module(body=kept, type_ignores=[]))


def additions_in(names):
    """The additions among the names of modules."""
    return {name.split(".")[2] for name in names if name.startswith(f"{PACKAGE}.")}


def additions_named(file):
    """The additions whose modules a file names in texts, as in "ragbandit.additions.vw.policy:VowpalWabbit"."""
    texts = [node.value for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Constant)]
    return additions_in(text for text in texts if isinstance(text, str))


@pytest.mark.parametrize("name", additions())
def test_an_addition_is_a_folder_with_its_tests(name):
    """An addition has tests, imports only additions that it declares, and its `__init__` imports only `Addition`."""
    files = [*(FOLDER / name).rglob("*.py"), *(ROOT / "tests" / "additions" / name).rglob("*.py")]
    assert (ROOT / "tests" / "additions" / name).is_dir()
    assert additions_in(set().union(*map(imports_of, files))) <= {name, *additions()[name].needs}
    own = {"ragbandit.shared.additions", "ragbandit.shared.additions.Addition"}
    assert imports_of(FOLDER / name / "__init__.py") == own
    assert any(getattr(additions()[name], hook) for hook in (*HOOKS, "sections"))


def test_the_core_imports_no_addition():
    """No file of the core or of its tests imports an addition, not even inside a function, or names a module of one."""
    parts = ("router", "strategies", "workers", "ragbandit", "examples", "benchmarks", "tests")
    files = {file for part in parts for file in (ROOT / part).rglob("*.py")}
    core = {file for file in files if "additions" not in file.relative_to(ROOT).parts}
    assert len(core) > 500
    core = {file for file in core if "additions" in file.read_text("utf-8")}  # parsing all takes long
    read = {file: imports_at_run_time if file == FRONT else imports_of for file in core}
    named = {
        file: additions_in(read[file](file)) | (set() if file == FRONT else additions_named(file)) for file in core
    }
    assert {file.name for file in core if named[file]} == set()


@pytest.mark.parametrize("hook", HOOKS)
def test_what_is_offered_can_be_loaded(hook):
    """Each name that an addition offers leads to something that can be imported."""
    assert load_offered(hook).keys() == offered_places(hook).keys()
    assert None not in load_offered(hook).values()


@pytest.fixture
def install(monkeypatch):
    """Replaces the additions of this process until the test ends."""
    caches = offered_places, load_offered, surfaces

    def install_these(these):
        for cache in caches:
            cache.cache_clear()
        monkeypatch.setattr(module, "additions", lambda: these)
        monkeypatch.setattr(module, "_FAULTS", {})

    yield install_these
    for cache in caches:
        cache.cache_clear()


def test_a_name_belongs_to_one_addition(install):
    """If two additions offer the same name, the second one is left out, and its fault names the first."""
    both = {"first": Addition(arms={"curt": "arm:Curt"}), "second": Addition(arms={"curt": "arm:Curt"})}
    install(both)
    assert offered_places("arms") == {"curt": f"{PACKAGE}.first.arm:Curt"}
    assert faults() == {"second": "'curt' in arms is a name of ragbandit.additions.first.arm:Curt too"}


def test_a_verb_belongs_to_one_addition(install):
    """If two additions offer the same verb, the second one is left out, also if their headings differ."""
    first, second = Addition(verbs={"Run: mend": "verb:mend"}), Addition(verbs={"Look: mend": "verb:mend"})
    install({"first": first, "second": second})
    assert [*offered_places("verbs")] == ["Run: mend"]
    assert faults() == {"second": "'mend' in verbs is a name of ragbandit.additions.first.verb:mend too"}


def run_again(name):
    """Run the code of a module in a module of its own."""
    spec = find_spec(name)
    again = module_from_spec(spec)
    spec.loader.exec_module(again)
    return again


#: hook -> (name of the core, what reads the names of the hook)
OF_THE_CORE = {
    "arms": ("single_step", built_in_arms.__wrapped__),
    "policies": ("mba", built_in_policies.__wrapped__),
    "generators": ("openai", lambda: run_again("ragbandit.router.config.sections")),
    "retrievers": ("bm25", lambda: run_again("ragbandit.router.config.sections")),
    "documents": (".pdf", lambda: [*read_folder(FOLDER / "none")]),
    "dialects": ("chat", lambda: run_again("ragbandit.shared.dialects.registry")),
    "doors": ("openai", lambda: run_again("ragbandit.router.api.doors")),
    "verbs": ("Look: serve", lambda: run_again("ragbandit.workers.cli")),
    "verbs of a group": ("index build", lambda: run_again("ragbandit.workers.cli")),
}


@pytest.mark.parametrize("hook", OF_THE_CORE)
def test_a_name_of_the_core_is_not_replaced(install, hook):
    """The core keeps a name that an addition offers too, and the addition has a fault, at each hook with such names."""
    name, read = OF_THE_CORE[hook]
    install({"own": Addition(**{hook.partition(" ")[0]: {name: "part:Part"}})})
    with suppress(InvalidInput, ConfigError):  # a folder without documents, and an addition that was deleted
        read()
    words = name.rpartition(": ")[2]
    assert faults() == {"own": f"{words!r} in {hook.partition(' ')[0]} is a name of the core"}


@pytest.mark.parametrize("hook", ["arms", "policies"])
def test_a_clash_with_the_core_is_a_finding_of_settings(install, settings, hook):
    """`status` and `validate` name an addition that offers a name of the core's arms or policies."""
    built_in_policies.cache_clear()
    install({"own": Addition(**{hook: {OF_THE_CORE[hook][0]: "part:Part"}})})
    (finding,) = (one for one in findings_of_settings(settings()) if one.about == "the addition own")
    built_in_policies.cache_clear()
    assert f"in {hook} is a name of the core" in finding.what


def test_rules_and_units_name_the_installed_interfaces(install):
    """A rule names each interface that is installed, and units those at which coding agents ask; others are refused."""
    own = Addition(surfaces={"own": "/v1/own", "tool": ""})
    install({"own": own})
    rules, sections = run_again("ragbandit.router.config.rules"), run_again("ragbandit.router.config.sections")
    assert rules.Rule(when={"door": [*rules.DOORS]}, arms=["a"]).when["door"] == ["route", "openai", "own", "tool"]
    assert sections.ConversationSettings(units={"own": "task", "route": "turn"}).unit_of("own") == "task"
    for name in ("tool", "gone"):
        with pytest.raises(ValueError, match="known: route, openai, own"):
            sections.ConversationSettings(units={name: "task"})
    with pytest.raises(ValueError, match="known: route, openai, own, tool"):
        rules.Rule(when={"door": "gone"}, arms=["a"])


def test_the_name_of_an_interface_belongs_to_one():
    """No two interfaces of additions and of the core have one name in rules."""
    names = ["route", "openai", *(name for addition in additions().values() for name in addition.surfaces)]
    assert len({*names}) == len(names)


def test_an_addition_that_cannot_be_imported_is_named(monkeypatch):
    """A class that cannot be imported is a ConfigError with its place and a remedy."""
    monkeypatch.setattr(module, "offered_places", lambda hook: {"curt": f"{PACKAGE}.gone.arm:Curt"})
    load_offered.cache_clear()
    with pytest.raises(
        ConfigError, match=r"'curt' .* ragbandit\.additions\.gone\.arm:Curt: ModuleNotFoundError"
    ) as caught:
        load_offered("arms")
    assert caught.value.remedy
    load_offered.cache_clear()


def test_a_public_function_whose_addition_was_deleted(monkeypatch):
    """`ragbandit.advise` of an installation without its addition is a ConfigError with a remedy."""
    monkeypatch.setitem(ragbandit._LAZY, "advise", f"{PACKAGE}.deleted.library")
    with pytest.raises(ConfigError, match=r"ragbandit\.advise needs ragbandit\.additions\.deleted") as caught:
        ragbandit.advise  # noqa: B018 - an attribute that is looked up
    assert caught.value.remedy


@pytest.mark.parametrize("name", sorted(additions().keys() & _OF_ADDITIONS.keys()))
def test_the_core_knows_whose_setting_is_missing(name):
    """The table of settings of additions has the section and the keys that each of them declares."""
    ((section, place),) = additions()[name].sections.items()
    part = module._imported(section, place=f"{PACKAGE}.{name}.{place}")
    assert _OF_ADDITIONS[name] == (section, frozenset(part.model_fields))


#: runs the command with further folders of additions
COMMAND = (
    "import sys, ragbandit.additions as own; own.__path__.append(sys.argv.pop(1));"
    "from ragbandit.workers.cli import main; main()"
)
IMPORT = "from ragbandit.shared.additions import Addition\n"
PORT = (
    "from ragbandit.router.config.section import Section\nclass Port(Section):\n    port: int = 1\n    batch: int = 1\n"
)
#: name of an addition -> (its __init__, what is wrong with it)
FAULTY = {
    "broken": ("1 / 0", "ZeroDivisionError: division by zero"),
    "empty": ("", "its __init__ defines no ADDITION"),
    "another": ("ADDITION = 3", "its __init__ defines no ADDITION"),
    "serves": (f"{IMPORT}ADDITION = Addition(verbs={{'Run: serve': 'part:Port'}})", "'serve' in verbs is a name of"),
    "hidden": (f"{IMPORT}ADDITION = Addition(verbs={{'Nowhere: mend': 'part:Port'}})", "has no group or heading"),
    "clashes": (f"{IMPORT}ADDITION = Addition(arms={{'model': 'part:Port'}})", "'model' in arms is a name of the core"),
    "port": (f"{IMPORT}ADDITION = Addition(sections={{'server': 'part:Port'}})", "'server' takes no settings"),
    "twice": (f"{IMPORT}ADDITION = Addition(sections={{'learning': 'part:Port'}})", "has a setting 'batch' already"),
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A folder of faulty additions, and what runs the command with it."""
    folder = tmp_path_factory.mktemp("faulty")
    for name, (text, _) in FAULTY.items():
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(text)
        (folder / name / "part.py").write_text(PORT)

    def run(*words, config="{}"):
        (folder / "config.yaml").write_text(config)
        command = [sys.executable, "-c", COMMAND, folder, *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=100, check=False)

    run.folder = folder
    return run


def test_faulty_additions_stop_no_verb(faulty):
    """With additions that are broken or clash, --version and --help work, and an unknown command names them."""
    assert faulty("--version").returncode == 0
    assert "serve" in faulty("--help").stdout
    unknown = faulty("mend")
    assert unknown.returncode == 2
    words = " ".join(unknown.stderr.replace("│", " ").split())
    assert "the addition broken cannot be used: ZeroDivisionError: division by zero" in words


def test_validate_names_faulty_additions(faulty):
    """`validate` has a problem for each addition that is broken or clashes, with its name and what is wrong."""
    checked = faulty("validate", "--settings-only")
    assert checked.returncode == 1
    for name, (_, what) in FAULTY.items():
        assert any(f"the addition {name}" in line and what in line for line in checked.stdout.splitlines()), name


def test_status_names_faulty_additions(faulty):
    """`status` of a new store has a problem for each addition that the router cannot use, with its name and what is
    wrong. Names of the core's arms are checked by `validate` only, since the router imports no arm.
    """
    config = f"encoder: {{model: hashing}}\ndata_dir: {faulty.folder / 'data'}"
    (faulty.folder / "config.yaml").write_text(config)
    with Router.open(faulty.folder / "config.yaml"):
        pass
    shown = " ".join(faulty("status", config=config).stdout.split())
    for name, (_, what) in FAULTY.items():
        if name != "clashes":
            assert f"the addition {name}: it cannot be used" in shown, name
            assert what in shown, name


def test_a_setting_of_a_faulty_addition_names_it(faulty):
    """An unknown name in the settings names the additions that cannot be used."""
    refused = faulty("validate", config="policy: {name: gone}")
    assert "the addition broken cannot be used" in refused.stderr


def test_a_setting_of_a_missing_addition_names_it(monkeypatch):
    """A setting of an addition that is missing is an error that names the addition."""
    monkeypatch.setattr(error_words, "additions", dict)
    for path, name in (
        (("learning", "golden"), "golden"),
        (("judge", "generator", "precision"), "local_models"),
        (("generators", "own", "anthropic"), "anthropic"),
        (("ratings",), "other_tools"),
    ):
        assert error_words._of_addition(*path) == f": the addition {name} is missing"
    assert error_words._of_addition("learning", "gold") == ""

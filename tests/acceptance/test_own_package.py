"""A package of others: the examples of docs/extend.md as one pip package, installed with the wheel."""

import json
import re
import subprocess

import pytest

from benchmarks.service_process import free_port

from .conftest import ROOT, bare, build_wheel, client_of_up, new_environment, running_up, until

PAGE = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
#: section of the page -> modules of the package that have its first Python blocks; the block after them is `__init__`
MODULES = {
    "An arm that asks other arms": ("arm",),
    "A form of documents of your own": ("reader",),
    "A retriever of your own": ("retriever",),
    "A chore of your own": ("chore",),
    "An interface of your own": ("endpoints",),
    "A guard of your own": ("step",),
    "A dialect of your own": ("dialect",),
    "A verb and settings of your own": ("settings", "verb"),
}
SRT = "1\n00:00:01,000 --> 00:00:02,000\nParis is the capital of France.\n"


def blocks_of(section, *, language="python"):
    """The blocks of a section of the page."""
    text = re.split(r"^## ", PAGE.partition(f"\n## {section}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The package of the page's section on additions: its pyproject.toml, and the examples of the other sections."""
    folder = tmp_path_factory.mktemp("package")
    [project] = blocks_of("An addition", language="toml")
    backend = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n\n'
    (folder / "pyproject.toml").write_text(backend + project)
    inside = folder / "my_router_parts"
    inside.mkdir()
    offered = []
    for section, modules in MODULES.items():
        *codes, addition = blocks_of(section)[: len(modules) + 1]
        for module, code in zip(modules, codes, strict=True):
            (inside / f"{module}.py").write_text(code.replace("from owner.", "from my_router_parts."))
        offered.append(re.search(r"ADDITION = Addition\((.*)\)", addition)[1])
    head = "from ragbandit.shared.additions import Addition\n\n"
    (inside / "__init__.py").write_text(f"{head}ADDITION = Addition({', '.join(offered)})\n")
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(package, wheel, tmp_path_factory):
    """The command of an environment that has the wheel and the package."""
    python = new_environment(tmp_path_factory.mktemp("environment"), str(wheel), str(package))
    return str(python.with_name("ragbandit"))


@pytest.fixture
def project(tmp_path):
    """A user's folder: a configuration with two arms of the caller, and a film's subtitles."""
    arms = {"fast": {"run_by": "caller"}, "slow": {"run_by": "caller", "facts": {"slow": True}}}
    settings = {"encoder": {"model": "hashing"}, "arms": arms, "owner": "ann", "server": {"port": free_port()}}
    (tmp_path / "config.yaml").write_text(json.dumps(settings))
    (tmp_path / "films").mkdir()
    (tmp_path / "films" / "france.srt").write_text(SRT)
    return tmp_path


def run(command, *words, folder):
    done = subprocess.run(
        [command, *words], cwd=folder, env=bare(), capture_output=True, text=True, timeout=100, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_its_verb_and_setting_work(environment, project):
    """The verb stands in the help and prints the setting of the file."""
    assert "Print whom to ask if an arm fails." in " ".join(run(environment, "--help", folder=project)[1].split())
    printed = run(environment, "owner", folder=project)
    assert printed == (0, "ann\n", ""), printed
    assert run(environment, "validate", "--settings-only", folder=project)[0] == 0


def test_its_form_of_documents_and_its_retriever_work(environment, project):
    """`index build` reads subtitles into the index of the package's retriever, and `index search` finds them."""
    search = ("index", "search", "the capital of France", "--retriever", "lines")
    built = run(environment, "index", "build", "--corpus", "films", "--retriever", "lines", folder=project)
    assert built[0] == 0, built
    assert "france.srt" in run(environment, *search, folder=project)[1]


def test_its_arm_asks_other_arms(environment, project):
    """The arm of the package answers with the arm that the question's length chooses, and a router knows its parts."""
    arms = {name: {"class": "no_retrieval", "generator": name} for name in ("small", "large")}
    arms["by_length"] = {"short": "small", "long": "large", "words": 3}
    models = {name: {"name": "scripted", "script": {"": name}} for name in ("small", "large")}
    (project / "config.yaml").write_text(json.dumps({"arms": arms, "generators": models}))
    code = """
from ragbandit import Budget, DecisionId, Query
from ragbandit.router.config.loading import load
from ragbandit.shared.additions import arm_parts
from ragbandit.strategies.outcome import run_strategy
from ragbandit.workers.setup.generators import worker_arms
from ragbandit.workers.setup.loading import ArmLoader
import asyncio
settings = load(None).settings
arm = ArmLoader(settings).load(worker_arms(settings))["by_length"]
own = {"budget": Budget(), "retriever": arm.retriever, "generator": arm.generator}
for text in ("Who won?", "Who won the match in the end?"):
    print(asyncio.run(run_strategy(arm.strategy, query=Query(id=DecisionId("d"), text=text), **own)).answer)
print(arm_parts()["by_length"])
"""
    done = run(environment.replace("/ragbandit", "/python"), "-c", code, folder=project)
    assert done[1].split("\n")[:3] == ["small", "large", "('short', 'long')"], done


def test_its_fault_names_the_package(wheel, package, project, tmp_path_factory):
    """An addition that cannot be read is named with its package by `validate`, and all other verbs work."""
    broken = tmp_path_factory.mktemp("broken")
    (broken / "pyproject.toml").write_text((package / "pyproject.toml").read_text())
    (broken / "my_router_parts").mkdir()
    (broken / "my_router_parts" / "__init__.py").write_text("1 / 0\n")
    python = new_environment(broken / "environment", str(wheel), str(broken))
    command = str(python.with_name("ragbandit"))
    (project / "config.yaml").write_text("encoder: {model: hashing}\n")
    code, out, _ = run(command, "validate", "--settings-only", folder=project)
    assert code == 1
    assert "the addition my_parts" in out
    assert "ZeroDivisionError: division by zero (package my-router-parts 1.0)" in " ".join(out.split())
    assert run(command, "--version", folder=project)[0] == 0


@pytest.mark.timeout(200)
@pytest.mark.slow
def test_its_guard_door_chore_and_dialect_work_in_a_service(environment, project):
    """In a service its guard leaves out the slow arm, the door lists arms, the chore logs, and `status` names it."""
    port = json.loads((project / "config.yaml").read_text())["server"]["port"]
    with (
        running_up(project, command=(environment,), environ=bare()) as up,
        client_of_up(up, port=port, folder=project) as client,
    ):
        arms = {client.route(f"Who is number {number}?", context={"hurry": True})["arm"] for number in range(12)}
        assert arms == {"fast"}
        asking = ["curl", "-s", f"http://127.0.0.1:{port}/v1/arms"]
        listed = subprocess.run(asking, capture_output=True, text=True, check=True, timeout=20)
        assert json.loads(listed.stdout) == {"arms": ["fast", "slow"]}
        until(lambda: any("the ledger has" in log.read_text() for log in project.rglob("logs/*.log")), seconds=30)
    shown = run(environment, "status", "--json", folder=project)
    assert json.loads(shown[1])["additions"] == {"my_parts": "my-router-parts 1.0"}
    assert "package my-router-parts 1.0" in run(environment, "status", folder=project)[1]
    code = "from ragbandit.shared.dialects.registry import DIALECTS; print(*DIALECTS)"
    python = environment.replace("/ragbandit", "/python")
    assert "turns" in run(python, "-c", code, folder=project)[1].split()

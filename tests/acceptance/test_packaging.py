"""Installation: one top-level package, from wheel, sdist, editable install and checkout, next to any names."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import ragbandit
from benchmarks.service_process import free_port
from ragbandit.router.storage.sql.tables import SCHEMA_REVISION
from ragbandit.testing.openai_server import ScriptedServer
from tests.support.additions import needs
from tests.support.tar_files import unpack

from .conftest import ROOT, bare, build_wheel, client_of_up, new_environment, running_up

VERSION = ragbandit.__version__
PARTS = ("router", "strategies", "workers", "migrations", "examples")
WAYS = ("wheel", "sdist", "editable", "checkout")
ARM = """
from ragbandit.strategies import Answer

class Curt:
    needs = frozenset()
    params = {}

    def __init__(self, *, name):
        self.name = name

    async def answer(self, question, *, run):
        return Answer(text="as curt as can be", stop_reason="answered")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the sdist, as `python -m build` makes them, and a wheel made from the unpacked sdist."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True, timeout=60, env=bare()
    )
    sdist = next(folder.glob("*.tar.gz"))
    unpack(sdist, folder / "unpacked")
    (source,) = (folder / "unpacked").iterdir()
    again = build_wheel(source, folder / "again")
    return {"wheel": next(folder.glob("*.whl")), "sdist": again, "source": source}


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """A function from a way of installing to the Python and environment that have the package in that way alone."""

    def install(way: str) -> tuple[Path, dict[str, str]]:
        folder = tmp_path_factory.mktemp(way)
        if way == "checkout":
            return new_environment(folder), bare() | {"PYTHONPATH": str(ROOT)}
        what = ["-e", str(ROOT)] if way == "editable" else [str(built[way])]
        return new_environment(folder, *what), bare()

    return install


@pytest.fixture
def project(tmp_path):
    """A user's folder with modules named like ours; `conf` has a configuration and a module with an arm."""
    (tmp_path / "router.py").write_text("x = 1\n")
    (tmp_path / "strategies.py").write_text("x = 1\n")
    for name in ("workers", "migrations"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "my_arms.py").write_text(ARM)
    tree = {
        "data_dir": str(tmp_path / "data"),
        "encoder": {"model": "hashing"},
        "generator": {"name": "scripted"},
        "arms": {"curt": {"class": "my_arms:Curt"}},
        "server": {"port": free_port()},
    }
    (tmp_path / "conf" / "config.yaml").write_text(json.dumps(tree))
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"id": "a", "title": "A", "text": "Some text."}))
    return tmp_path


def test_the_wheel_holds_one_package(built):
    """Wheel and sdist hold `ragbandit` and nothing else to import; both make the same wheel, file by file."""
    contents = {}
    for kind in ("wheel", "sdist"):
        with zipfile.ZipFile(built[kind]) as archive:
            contents[kind] = {name: archive.read(name) for name in archive.namelist() if ".dist-info" not in name}
            tops = {name.partition("/")[0] for name in archive.namelist()}
        assert tops == {"ragbandit", f"ragbandit-{VERSION}.dist-info"}
    assert contents["wheel"] == contents["sdist"]
    assert "ragbandit/integrations/langchain.py" in contents["wheel"]  # a folder of its own, not a link
    for part in PARTS:
        inside = {name for name in contents["wheel"] if name.startswith(f"ragbandit/{part}/")}
        here = {f"ragbandit/{path.relative_to(ROOT)}" for path in (ROOT / part).rglob("*") if path.is_file()}
        assert inside == {name for name in here if "__pycache__" not in name}
    assert not [part for part in PARTS if (built["source"] / part).exists()]


@pytest.mark.parametrize("way", [way if way == "wheel" else pytest.param(way, marks=pytest.mark.slow) for way in WAYS])
def test_names_of_others_do_no_harm(way, installed, project):
    """Command, module, validation, migration and import work next to a user's router.py, workers/ and so on."""
    python, environment = installed(way)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [".", environment.get("PYTHONPATH")]))

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    code = "import router, ragbandit, ragbandit.shared.types as t; print(router.x, ragbandit.__file__, t.__file__)"
    mine, package, types = run(str(python), "-c", code).split()
    assert mine == "1"
    home = ROOT if way in ("editable", "checkout") else python.parents[1]
    assert Path(package).is_relative_to(home)
    assert Path(types).is_relative_to(home)
    command = [str(python), "-m", "ragbandit"] if way == "checkout" else [str(python.with_name("ragbandit"))]
    assert "a recorded table first" in run(*command, "demo", "--help")
    assert run(*command, "--version").strip() == f"ragbandit {VERSION}"
    config = ("--config", "conf/config.yaml")
    run(str(python), "-m", "ragbandit", "validate", *config)
    assert f"is at {SCHEMA_REVISION}" in run(str(python), "-m", "ragbandit", "migrate", *config)


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_a_service_beside_names_of_others(installed, project):
    """`up`, its workers and an arm next to config.yaml work from the wheel in a folder with modules named like ours."""
    python, environment = installed("wheel")
    command = str(python.with_name("ragbandit"))
    config = ("--config", "conf/config.yaml")
    port = json.loads((project / "conf" / "config.yaml").read_text())["server"]["port"]
    run = {"cwd": project, "env": environment, "timeout": 60, "capture_output": True, "text": True}
    subprocess.run([command, "index", "build", "--corpus", "corpus.jsonl", *config], check=True, **run)
    with (
        running_up(project, *config, command=(command,), environ=environment) as up,
        client_of_up(up, port=port, folder=project),
    ):
        asking = [command, "answer", "Who?", "--url", f"http://127.0.0.1:{port}", "--json"]
        answer = json.loads(subprocess.run(asking, check=True, **run).stdout)
    assert (answer["arm"], answer["answer"]) == ("curt", "as curt as can be")


@needs("init")
@pytest.mark.timeout(120)
@pytest.mark.slow
def test_a_first_configuration(installed, tmp_path):
    """In an empty folder with the wheel and a model server: `init --yes` writes settings with which `up` answers."""
    python, environment = installed("wheel")
    command, port = str(python.with_name("ragbandit")), free_port()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "france.txt").write_text("Paris is the capital of France.")
    with ScriptedServer({"": "Paris."}, models=[{"id": "llama-3b"}, {"id": "llama-70b"}]) as server:
        environment |= {"OPENAI_BASE_URL": server.url, "RAGBANDIT_SERVER__PORT": str(port)}
        run = {"cwd": tmp_path, "env": environment, "timeout": 60, "capture_output": True, "text": True}
        subprocess.run([command, "init", "--yes"], check=True, **run)
        with (
            running_up(tmp_path, command=(command,), environ=environment) as up,
            client_of_up(up, port=port, folder=tmp_path),
        ):
            asking = [command, "answer", "What is the capital of France?", "--json"]
            answer = json.loads(subprocess.run(asking, check=True, **run).stdout)
        asked = {request.body["model"] for request in server.requests if request.body}
    assert answer["answer"] == "Paris."
    assert asked == {"llama-70b"}  # that of the incumbent, which answers first

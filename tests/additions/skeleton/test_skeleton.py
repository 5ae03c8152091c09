"""The verb `skeleton`: the package that it writes passes its own tests, and offers what it has."""

import os
import subprocess
import sys
from pkgutil import resolve_name

import pytest

from ragbandit.additions.skeleton.command import _OFFERED
from tests.support import command


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The folder of a package with all parts."""
    folder = tmp_path_factory.mktemp("skeleton") / "own_parts"
    words = [word for part in _OFFERED for word in ("--part", part)]
    done = command.run("skeleton", "own_parts", *words, "--folder", folder)
    assert done.exit_code == 0, done.output
    return folder


@pytest.mark.timeout(200)
def test_its_tests_pass(package):
    """The tests of all contracts pass as they are written, with the package on the path."""
    asked = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(package)]
    environ = {**os.environ, "PYTHONPATH": str(package)}
    done = subprocess.run(asked, cwd=package, env=environ, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


def test_it_offers_its_parts(package, monkeypatch):
    """ADDITION names each part under its hook, and each place leads to what it names."""
    monkeypatch.syspath_prepend(package)
    addition = resolve_name("own_parts:ADDITION")
    for hook, place in _OFFERED.values():
        [(_, offered)] = getattr(addition, hook).items()
        assert offered == place
        assert resolve_name(f"own_parts.{place}") is not None


def test_pip_builds_it(package, tmp_path):
    """The package's pyproject.toml makes a wheel with its modules and its entry point."""
    asked = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, package]
    subprocess.run([*map(str, asked)], check=True, capture_output=True, timeout=100)
    assert [file.name for file in tmp_path.glob("*.whl")] == ["own_parts-0.1-py3-none-any.whl"]


@pytest.mark.parametrize(
    ("words", "field"),
    [(("Own-Parts",), "NAME"), (("own", "--part", "arms"), "--part"), (("own", "--folder", "full"), "--folder")],
)
def test_what_it_refuses(tmp_path, monkeypatch, words, field):
    """A name that no package can have, an unknown part and a folder with files are refused by their names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    done = command.run("skeleton", *words)
    assert done.exit_code != 0
    assert field in done.output
    assert not (tmp_path / "own").exists()

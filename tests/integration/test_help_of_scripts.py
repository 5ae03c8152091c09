"""Benchmarks and generators of the documentation print a help and do nothing else."""

import os
import runpy
import sys
from unittest import mock

import pytest

from .test_base_install import ROOT

SCRIPTS = sorted(
    path.relative_to(ROOT)
    for folder in ("benchmarks", "docs")
    for path in (ROOT / folder).rglob("*.py")
    if path.name == "__main__.py" or "\nif __name__ == " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_help_of_a_script(script, monkeypatch, capsys):
    """`python -m MODULE --help` prints how the module is called, by its name, and ends with exit code 0."""
    monkeypatch.setattr(sys, "argv", [str(ROOT / script), "--help"])
    with mock.patch.dict(os.environ), pytest.raises(SystemExit) as ended:  # some set variables when they are imported
        runpy.run_path(str(ROOT / script), run_name="__main__")
    module = ".".join(script.with_suffix("").parts).removesuffix(".__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m {module} ")

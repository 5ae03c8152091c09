from pathlib import Path

import pytest

from ragbandit.additions.skeleton.parts.verb import own_verb


def test_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("arms: {one: {run_by: caller}, two: {run_by: caller}}\n")
    own_verb(str(file))
    assert capsys.readouterr().out == "one two\n"

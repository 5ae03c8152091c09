"""One measurement in two trees: which is better, and what a failed run says."""

from pathlib import Path

import pytest

from benchmarks.before_after import __main__ as harness


def test_a_figure_per_second_is_better_when_it_is_higher():
    """Twice the rate and half the time are both twice as good."""
    assert harness.ratio_of("decisions [/s]", before=100.0, after=200.0) == 2.0
    assert harness.ratio_of("route p50 [ms]", before=8.0, after=4.0) == 2.0
    assert harness.ratio_of("refused [1]", before=0.0, after=4.0) is None


def test_a_measurement_runs_in_the_tree_that_it_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The modules of that tree are imported, not those of this one."""
    (tmp_path / "ragbandit.py").write_text("speed = 42.0\n", encoding="utf-8")
    (tmp_path / "speed.py").write_text(
        "import ragbandit\ndef measure():\n    return {'speed [/s]': ragbandit.speed}\n", encoding="utf-8"
    )
    monkeypatch.setattr(harness, "HERE", tmp_path)
    assert harness.run_in(tmp_path, "speed") == {"speed [/s]": 42.0}


def test_a_measurement_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its last lines are in the error: a run that ended early is no figure."""
    (tmp_path / "broken.py").write_text("raise ValueError('no data here')\n", encoding="utf-8")
    monkeypatch.setattr(harness, "HERE", tmp_path)
    with pytest.raises(RuntimeError, match="no data here"):
        harness.run_in(tmp_path, "broken")

"""README.md: its examples run, the names in it exist, and its figures are those of the benchmarks."""

import logging
import re
import textwrap
import tomllib
from pathlib import Path

from benchmarks.publish import PAGE, figures_table
from ragbandit.router.api.schemas.requests import FeedbackBody, RouteBody

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BENCHMARKS = PAGE.read_text(encoding="utf-8")


def test_it_is_short():
    """The README has at most 220 lines."""
    assert len(README.splitlines()) <= 221


def test_the_library_example_runs(tmp_path, monkeypatch, capsys, caplog):
    """The README's config.yaml and Python run as they stand, and warn of nothing; the encoder needs no model here."""
    (configuration,), (code,) = (re.findall(rf"```{kind}\n(.*?)```", README, flags=re.S) for kind in ("yaml", "python"))
    (tmp_path / "config.yaml").write_text(configuration)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAGBANDIT_ENCODER__MODEL", "hashing")
    exec(compile(code, "README.md", "exec"), {})
    said = capsys.readouterr().out
    assert said.startswith("learned ")
    assert "learned=2" in said
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_the_python_is_what_the_type_checker_sees():
    """The calls of both examples stand in examples/readme.py, which `mypy --strict` checks with the rest."""
    typed = (ROOT / "examples" / "readme.py").read_text(encoding="utf-8")
    (library,) = re.findall(r"```python\n.*?^(with Router.*?)```", README, flags=re.S | re.M)
    (client,) = re.findall(r"    from ragbandit import Client\n((?:    .*\n)+)", README)
    for shown in (textwrap.indent(library, "    "), client):
        assert shown in typed


def test_the_http_examples_are_taken():
    """Every body that the README sends by curl is one that the service takes."""
    sent = re.findall(r"/v1/(answer|route|feedback) -H 'content-type: application/json'[\s\\]+-d '(.*?)'\n", README)
    bodies = [(FeedbackBody if path == "feedback" else RouteBody).model_validate_json(body) for path, body in sent]
    assert len(bodies) == README.count("curl -s localhost:8100/v1/") - README.count("/v1/decisions/ID\n")
    assert [body.budget.rounds for body in bodies if isinstance(body, RouteBody)] == [2, None]


def test_extras_are_those_of_the_package():
    """The list of extras names every extra of pyproject.toml, and no other."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    table = README[README.index("| extra |") :].split("\n\n")[0]
    named = [
        name for cell in re.findall(r"^\| (`[^|]*) \|", table, flags=re.M) for name in re.findall(r"`([\w-]+)`", cell)
    ]
    assert named == sorted(project["optional-dependencies"], key=lambda name: table.index(f"`{name}`"))
    assert set(re.findall(r"'\.\[(\w+)\]'", README)) <= set(project["optional-dependencies"])


def test_the_headline_is_that_of_the_benchmark():
    """EM and steps in the first lines are those of the published table, and so are the share and the third."""
    rows = {
        name: (float(em), float(steps))
        for name, em, steps in re.findall(r"│ ([\w-]+) +│ [^│]*│ +([\d.]+)[^│]*│ +([\d.]+) │ [^│]*│ [^│]*%", BENCHMARKS)
    }
    (em, steps), (most, all_steps) = rows["mba"], rows["always-multi_step"]
    head = README[: README.index("![")]
    assert f"answers {most:.1f} % of them exactly and takes {all_steps:.2f} rounds" in " ".join(head.split())
    assert f"answers {em:.1f} % and takes {steps:.2f}." in " ".join(head.split())
    assert f"**{em / most:.0%}".replace("%", " %") in head
    assert round(all_steps / steps) == 3


def test_figures_are_those_of_the_benchmarks():
    """The six figures are taken from what the benchmarks printed."""
    shown = README.split("<!-- figures:begin -->\n")[1].split("\n<!-- figures:end -->")[0]
    assert shown == figures_table(BENCHMARKS)
    assert shown.count("\n") == 2 + 6 - 1

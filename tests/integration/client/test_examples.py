"""What the page of the client and its example show runs against a real service."""

import re
import runpy
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "integrations" / "client.md").read_text(encoding="utf-8")


@pytest.fixture
def service(serve, monkeypatch):
    (arms,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.S)
    started = serve(**yaml.safe_load(arms))
    monkeypatch.setenv("RAGBANDIT_URL", started.url)
    return started


def test_the_page(service, tmp_path, monkeypatch):
    """All Python of docs/integrations/client.md runs in one process, from top to bottom."""
    (configuration,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.S)
    (tmp_path / "config.yaml").write_text(configuration)  # the library's example, at the end
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAGBANDIT_ENCODER__MODEL", "hashing")
    names: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.S):
        exec(compile(code, "docs/integrations/client.md", "exec"), names)
    counters = service.router.status().counters
    assert (counters.decided, counters.feedback) == (7, 4)
    for opened in ("client", "patient"):
        names[opened].close()


def test_the_readme(service):
    """The README's lines of the client run, and teach."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"(    from ragbandit import Client\n(?:    .*\n|\n(?=    ))+)", readme)
    answers = {"my_pipeline": ("Bram Stoker", 1), "my_better_one": ("Abraham Stoker", 4)}
    pipelines = {
        name: lambda question, found={"answer": answer, "steps": steps}: found
        for name, (answer, steps) in answers.items()
    }
    exec(compile(re.sub(r"^    ", "", code, flags=re.M), "README.md", "exec"), pipelines)
    assert service.router.status().counters.feedback == 1
    (record,) = map(service.router.decision, decided(service))
    assert record.outcome.steps in (1, 4)


def test_bring_your_own_pipelines(service, capsys):
    """The example routes its questions, reports and judges them."""
    written = yaml.safe_load((ROOT / "examples" / "bring_your_own_pipelines.yaml").read_text(encoding="utf-8"))
    assert set(written["arms"]) == {"fast", "deep"}
    runpy.run_module("ragbandit.examples.bring_your_own_pipelines", run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert {line.split()[0] for line in lines} <= {"fast", "deep"}
    counters = service.router.status().counters
    assert (counters.decided, counters.feedback) == (2, 2)
    (record,) = [r for r in map(service.router.decision, decided(service)) if "Dracula" in r.decision.query.text]
    assert record.outcome.answer == "Bram Stoker"
    assert record.outcome.steps in (1, 3)


def decided(service):
    from sqlalchemy import select

    from ragbandit.router.storage.sql.tables import decisions

    with service.router.database.engine.connect() as connection:
        return list(connection.execute(select(decisions.c.id)).scalars())

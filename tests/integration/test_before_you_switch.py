"""The page docs/before-you-switch.md, carried out: from one arm to a bought verdict on an arm that never served."""

import json
import re
import shlex

import yaml

from ragbandit import Router
from tests.support import command
from tests.support.additions import is_offered
from tests.support.pages import DOCS, module_of

PAGE = (DOCS / "before-you-switch.md").read_text(encoding="utf-8")
#: settings of the page: one arm, both arms, a budget
FIRST, BOTH, BUDGET = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
LINES = re.findall(r"^    ragbandit (.*)$", PAGE, flags=re.MULTILINE)
ENCODER = "data_dir: data\nencoder: {model: hashing, dimension: 8}\n"


def serve(*, first: int, count: int) -> set[str]:
    """Answer questions with the arm that the configuration draws. Returns the arms."""
    drawn = set()
    with Router.open("config.yaml") as router:
        for number in range(first, first + count):
            decision = router.route(f"Tell me who wrote book {number}")
            router.outcome(decision.id, answer="Bram Stoker", cost={"dollars": 0.01})
            drawn.add(str(decision.arm))
    return drawn


def test_the_page_leads_to_a_verdict(tmp_path, monkeypatch, sqlite_template):
    """Every command of the page runs with its files; the new arm is judged before it has answered anybody."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module_of("before-you-switch.md", "my_pipelines", folder=tmp_path)
    questions = [{"question": f"Who wrote book {number}?", "expected": ["Bram Stoker"]} for number in range(8)]
    (tmp_path / "export.json").write_text(json.dumps(questions))
    (tmp_path / "config.yaml").write_text(ENCODER + FIRST)
    logs, advise, plan, buy, validate, after = LINES
    for line, codes in ((logs, {0}), (advise, {0, 3, 4})):
        if is_offered(line):
            assert command.run(*shlex.split(line)).exit_code in codes, line
    assert serve(first=0, count=30) == {"today"}
    (tmp_path / "config.yaml").write_text(ENCODER + BOTH)
    assert serve(first=30, count=2) == {"today"}
    planned = command.run(*shlex.split(plan), code=0).stderr
    assert "32 routed questions of the period: 0 went to candidate anyway, 32 to other arms" in planned
    assert "nothing was asked" in planned
    bought = command.run(*shlex.split(buy), code=0)
    assert "the verdict is known" in bought.stderr
    assert "routing is better than always candidate" in " ".join(bought.stdout.split())
    settings = yaml.safe_load(ENCODER + BOTH) | yaml.safe_load(BUDGET)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    command.run(*shlex.split(validate), code=0)
    assert "routing is better than always candidate" in " ".join(
        command.run(*shlex.split(after), code=0).stdout.split()
    )

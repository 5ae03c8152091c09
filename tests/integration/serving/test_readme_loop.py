"""README's loop, copied from the page, on two pipelines whose true rewards are known."""

import re
from pathlib import Path
from statistics import fmean

from ragbandit import Router
from tests.support import two_pipelines as world

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
#: the loop without the lines before it, which define its pipelines and questions
(LOOP,) = re.findall(r"```python\n.*?^(with Router.*?)```", README, flags=re.S | re.M)
#: always the worse arm earns 0.485, a uniform draw 0.54, always the better arm 0.60, the better arm of each question
#: 0.71. The draws differ between runs, since the store's secret does
LEAST = 0.55


def test_the_loop_learns_while_it_runs(tmp_path, monkeypatch):
    """README's loop soon earns more than a uniform draw, because it learns while it runs.

    A warm start is in `test_the_path_of_a_new_user`.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(world.CONFIG)
    pipelines, rewards = world.pipelines(), []

    def noted(arm):
        def run(question):
            rewards.append(world.expected_reward(arm, question))
            return pipelines[arm](question)

        return run

    names = {"Router": Router, "questions": world.questions(160, seed=1)}
    exec(compile(LOOP, "README.md", "exec"), names | {"pipelines": {arm: noted(arm) for arm in pipelines}})
    assert fmean(rewards[80:]) > LEAST

"""A log of Personalizer with a known truth: the intervals of a replay hold it, and a policy starts warm from it."""

import json
import math

import numpy as np

from ragbandit import Query, Router, open_log, replay
from ragbandit.router.config.settings import Settings
from tests.support import command


def made_world(path, *, seed, count=1500):
    """A log of Personalizer as its exporter writes it, and the mean reward of always each of its actions.

    People of three cities get one of three actions. Half of the events are deferred, and most of these are never shown.
    Before they are logged, 60 % of the events without a reward are dropped.
    """
    rng = np.random.default_rng(seed)
    chances = np.array([[0.7, 0.2, 0.3], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]])
    activated = np.array([0.8, 0.3, 0.1])
    lines = []
    for number in range(count):
        city, deferred = int(rng.integers(3)), bool(rng.random() < 0.5)
        pmf = np.full(3, 0.1)
        pmf[city if rng.random() < 0.5 else 0] += 0.7
        drawn = int(rng.choice(3, p=pmf))
        shown = not deferred or bool(rng.random() < activated[city])
        reward = float(shown and rng.random() < chances[city, drawn])
        drop = 0.0 if reward else 0.6
        if rng.random() < drop:
            continue
        ranked = [drawn, *(arm for arm in range(3) if arm != drawn)]
        observed = [{"EventId": str(number), "ActionTaken": True}] * (deferred and shown)
        lines.append(
            {
                "_label_cost": -reward,
                "_label_probability": round(float(pmf[drawn]) * (1.0 - drop), 7),
                "_label_Action": drawn + 1,
                "_labelIndex": drawn,
                "o": observed + [{"v": reward}] * bool(reward),
                "EventId": f"{seed}-{number}",
                "DeferredAction": deferred,
                "pdrop": drop,
                "a": [arm + 1 for arm in ranked],
                "p": [round(float(pmf[arm]), 7) for arm in ranked],
                "c": {"where": [{"city": str(city)}], "_multi": [{"i": {"constant": 1, "id": name}} for name in "abc"]},
            }
        )
        if rng.random() < 0.1:
            lines.append({"RewardValue": 1.0, "EventId": "lost"})
    path.write_text("\n".join(map(json.dumps, lines)))
    truths = np.average(chances, axis=0, weights=0.5 + 0.5 * activated)
    return dict(zip("abc", truths, strict=True))


CONFIG = """
arms: {a: {run_by: caller}, b: {run_by: caller}, c: {run_by: caller}}
context: {where.city: {type: category, values: ["0", "1", "2"]}}
encoder: {model: hashing, dimension: 16}
policy: {name: linucb}
data_dir: data
"""


def test_a_policy_starts_warm(tmp_path, monkeypatch):
    """`advise --log --warm` lets the configured policy learn the log, so its first decision knows the best actions."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG)
    made_world(tmp_path / "log.dsjson", seed=1, count=3000)
    assert command.run("advise", "--log", "log.dsjson", "--folds", "2", "--warm").exit_code in (0, 3, 4)
    with Router.open("config.yaml") as router:
        first = router.route(Query(text="where.city 0", context={"where.city": "0"}))
        last = router.route(Query(text="where.city 2", context={"where.city": "2"}))
    assert dict(zip(first.arms, first.pmf, strict=True))["a"] > 0.9
    assert dict(zip(last.arms, last.pmf, strict=True))["c"] > 0.9


def test_the_interval_holds_the_truth(tmp_path):
    """In 20 made logs, the intervals of 95 % of always each action hold its true mean reward as often as they say."""
    path, held, errors, widths = tmp_path / "log.dsjson", [], [], []
    for seed in range(20):
        truth = made_world(path, seed=seed)
        result = replay(open_log(path, config=Settings()), candidates=[f"fixed:{arm}" for arm in truth])
        assert not result.faults
        for candidate, mean in zip(result.candidates, truth.values(), strict=True):
            held.append(candidate.reward.low <= mean <= candidate.reward.high)
            errors.append(candidate.reward.estimate - mean)
            widths.append(candidate.reward.high - candidate.reward.low)
    assert np.mean(held) >= 0.95 - 2.0 * math.sqrt(0.95 * 0.05 / len(held))
    assert abs(np.mean(errors)) <= 3.0 * np.std(errors) / math.sqrt(len(errors))
    assert np.mean(widths) < 0.35  # an interval that says nothing would hold the truth, too

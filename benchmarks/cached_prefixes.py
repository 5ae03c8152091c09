"""Dollars of conversations with and without `conversation.sticky_prefix`, and always with one arm.

Two models of equal price are each better at one of two kinds of questions. The scripted provider charges cached tokens
for an arm's last prompt if it was used at most 300 s ago. Turns are a minute apart, and a share of them 20 minutes.
"""

import random
import tempfile
import time
from itertools import product

import yaml

from ragbandit.router.config.settings import Settings
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.shared.model_servers.token_usage import Tokens
from ragbandit.shared.types import Query

TALKS, TURNS, FIRST, SEEDS, RIGHT = 150, 8, 50, 5, {"a": {"code": 0.9, "prose": 0.8}, "b": {"code": 0.8, "prose": 0.9}}
TREE = """{encoder: {model: hashing}, reward: {cost: {dollars: 1.0}, weight: 10.0}, workers: {inline: 0},
    generators: {a: &m {name: openai, token_prices: {input: 1.25, output: 10.0, cached_input: 0.125}}, b: *m},
    arms: {a: {class: model, generator: a}, b: {class: model, generator: b}}, conversation: {sticky_prefix: %s}}"""


def measured(router: Router, *, arm: str | None, pauses: float, seed: int) -> list[float]:
    """Means per turn after the first 50 conversations. Returns [dollars, quality, cached tokens, prompt tokens]."""
    chance, now, rows = random.Random(seed), time.time(), list[tuple[float, ...]]()
    router.service.clock = lambda: now
    for talk, turn in product(range(TALKS), range(TURNS)):
        if turn == 0:
            size, cache, _ = 6000, dict[str, tuple[float, int]](), talk % 5 or router.learn()
        kind, now = chance.choice(("code", "prose")), now + (1200.0 if chance.random() < pauses else 60.0)
        decision = None if arm else router.route(Query(text=f"a {kind} question, {turn}", session=f"talk-{talk}"))
        drawn = decision.arm if decision else str(arm)
        used_at, cached = cache.get(drawn, (0.0, 0))
        cached *= now - used_at <= 300.0
        dollars = Tokens(read=size, written=300, cached=cached).dollars((1.25, 10.0, 0.125))
        rows.append((dollars, chance.random() < RIGHT[drawn][kind], cached, size))
        if decision:
            router.outcome(decision.id, cost={"prompt_tokens": size, "dollars": dollars, "cached_tokens": cached})
            router.feedback(decision.id, rating=rows[-1][1], source="code")
        cache[drawn], size = (now, size), size + chance.randrange(500, 2500)
    return [sum(column[FIRST * TURNS :]) / (len(rows) - FIRST * TURNS) for column in zip(*rows, strict=True)]


for pauses, (way, arm) in product((0.0, 0.3), (("false", None), ("true", None), ("always a", "a"), ("always b", "b"))):
    tree, runs = yaml.safe_load(TREE % ("false" if arm else way)), []
    for seed in range(SEEDS):
        tree["data_dir"] = tempfile.mkdtemp()
        with Router.open(Settings.model_validate(tree), jobs=MemoryJobs()) as router:
            runs.append(measured(router, arm=arm, pauses=pauses, seed=seed))
    dollars, right, cached, read = (sum(column) / SEEDS for column in zip(*runs, strict=True))
    shown = f"{1000 * dollars:.2f} dollars per 1,000 turns, quality {right:.3f}, {cached / read:.0%} cached"
    print(f"{pauses:.0%} long pauses, sticky_prefix {way}: {shown}")

"""The worked example of docs/concepts.md: two pipelines, easy and hard questions, and estimates from a log.

Prints every number of that page. The numbers are the same on every machine.
"""

import math
import random

#: kind of question -> its share, and the chance that each pipeline answers it right
SHARES = {"easy": 0.7, "hard": 0.3}
RIGHT = {"easy": {"fast": 0.9, "deep": 0.9}, "hard": {"fast": 0.2, "deep": 0.8}}
STEPS = {"fast": 1, "deep": 4}
#: probabilities of the router that made the log: mostly fast for easy questions, mostly deep for hard ones
PMF = {"easy": {"fast": 0.9, "deep": 0.1}, "hard": {"fast": 0.3, "deep": 0.7}}
LOGGED = 10_000
RUNS, LOOKS = 400, 1000


def reward(kind: str, arm: str, weight: float) -> float:
    """Mean reward of an arm on a kind of question: quality - lambda * cost."""
    return RIGHT[kind][arm] - weight * STEPS[arm]


def by_lambda(weight: float) -> str:
    """The best arm of each kind at this lambda, and the rewards of always fast, always deep and routing."""
    best = {kind: max(STEPS, key=lambda arm: reward(kind, arm, weight)) for kind in SHARES}
    always = {arm: sum(SHARES[kind] * reward(kind, arm, weight) for kind in SHARES) for arm in STEPS}
    routed = sum(SHARES[kind] * reward(kind, best[kind], weight) for kind in SHARES)
    chosen = ", ".join(f"{kind}: {arm}" for kind, arm in best.items())
    return (
        f"lambda {weight:.2f}: best {chosen:24} always fast {always['fast']:.3f}, "
        f"always deep {always['deep']:6.3f}, routed {routed:.3f}"
    )


def from_a_log() -> list[str]:
    """How often "always deep" is right: in truth, by the plain mean of a log, and by weights from the propensities."""
    chance = random.Random(3)
    plain: list[float] = []
    weighted: list[float] = []
    for _ in range(LOGGED):
        kind = "easy" if chance.random() < SHARES["easy"] else "hard"
        arm = "deep" if chance.random() < PMF[kind]["deep"] else "fast"
        right = float(chance.random() < RIGHT[kind][arm])
        if arm == "deep":
            plain.append(right)
        weighted.append(right / PMF[kind]["deep"] if arm == "deep" else 0.0)
    mean = sum(weighted) / LOGGED
    spread = math.sqrt(sum((one - mean) ** 2 for one in weighted) / LOGGED / LOGGED)
    low, high = mean - 1.96 * spread, mean + 1.96 * spread
    truth = sum(SHARES[kind] * RIGHT[kind]["deep"] for kind in SHARES)
    return [
        f"always deep is right in truth: {truth:.3f}",
        f"mean of the {len(plain):,} logged rows that took deep: {sum(plain) / len(plain):.3f}",
        f"weighted by 1 / propensity, all {LOGGED:,} rows: {mean:.3f} ({low:.3f} to {high:.3f})",
    ]


def found(values: list[float]) -> tuple[bool, bool]:
    """Whether two intervals, read after every value from the 30th on, ever report a difference of the mean from 0.

    Returns (usual 95 % interval, confidence sequence: Howard et al. 2021, normal mixture, tightest at 500).
    """
    rho = math.sqrt((-2 * math.log(0.05) + math.log(1 - 2 * math.log(0.05))) / 500)
    total = squares = 0.0
    usual = anytime = False
    for number, value in enumerate(values, start=1):
        total, squares = total + value, squares + value * value
        if number < 30:
            continue
        mean = total / number
        variance = squares / number - mean * mean
        q = number * rho * rho + 1
        usual |= abs(mean) > 1.96 * math.sqrt(variance / number)
        anytime |= abs(mean) > math.sqrt(variance * 2 * q / (number * rho) ** 2 * math.log(math.sqrt(q) / 0.05))
    return usual, anytime


def peeking() -> list[str]:
    """How often reading the interval after every question finds a difference between two equal pipelines."""
    chance = random.Random(5)
    runs = [
        found([float(chance.random() < 0.5) - float(chance.random() < 0.5) for _ in range(LOOKS)]) for _ in range(RUNS)
    ]
    usual, anytime = (sum(each) / RUNS for each in zip(*runs, strict=True))
    return [
        f"two equal pipelines, {RUNS} runs, looked at after every question up to {LOOKS}:",
        f"  the usual 95 % interval finds a difference in {usual:.0%} of the runs",
        f"  a confidence sequence finds one in {anytime:.1%}",
    ]


def lines() -> list[str]:
    """Everything that the page quotes."""
    return [*(by_lambda(weight) for weight in (0.0, 0.05, 0.25)), *from_a_log(), *peeking()]


if __name__ == "__main__":
    print("\n".join(lines()))

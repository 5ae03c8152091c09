"""An assessment with every part, for tests of pages and screens."""

from ragbandit.router.comparison import Comparison, Difference, compare
from ragbandit.router.comparison.assessment import Assessment, FrontierPoint, LearningCurve, NumberTable, QuestionKind


def compared(second: str, reward: Difference, **more: Difference) -> Comparison:
    quality = Difference(estimate=0.18, low=0.1, high=0.26, first=0.79, second=0.61)
    cost = Difference(estimate=-1.3, low=-1.5, high=-1.1, first=2.7, second=4.0)
    values = {"quality": quality, "cost": cost, "unit": "steps", "needed": 10.0} | more
    return compare("routing", second, design="live traffic", questions=400, rated=100, reward=reward, **values)


BETTER = compared("always deep", Difference(estimate=0.094, low=0.04, high=0.146))
COUNTS = tuple(range(10, 401, 10))
#: name, quality, cost and kind of each point
POINTS = (
    ("deep", 0.8, 4.0, "arm"), ("fast", 0.61, 1.0, "arm"), ("what was served", 0.785, 2.7, "served"),
    ("routing", 0.79, 2.65, "in use"), ("linucb", 0.82, 3.5, "candidate"), ("mixture", 0.76, 1.9, "candidate"),
)  # fmt: skip
WHOLE = Assessment(
    title="Report",
    sentence="routing is better than always deep: +0.094 (+0.040 to +0.146) reward a question",
    number="+0.094",
    about="reward a question",
    verdict="better",
    comparisons=(
        BETTER,
        compared("always fast", Difference(estimate=0.05, low=-0.06, high=0.16)),
        compared("always medium", Difference(estimate=-0.07, low=-0.12, high=-0.02)),
        compared("always new", Difference(), quality=Difference(), cost=Difference()),
    ),
    frontier=tuple(FrontierPoint(name=name, quality=q, cost=c, kind=kind) for name, q, c, kind in POINTS),
    kinds=(
        QuestionKind(name="short", share=0.7, arms={"fast": 0.9, "deep": 0.1}, reward=0.8, examples=("Who?", "Why?")),
        QuestionKind(
            name="long",
            share=0.3,
            arms={"deep": 1.0},
            reward=None,
            better_arm="deep",
            better_by=Difference(estimate=0.1, low=0.05, high=0.15),
        ),
    ),
    curves=tuple(
        LearningCurve(
            name=name,
            questions=COUNTS,
            policy=[0.7 - 1.0 / (count + shift) for count in COUNTS],
            fixed=[0.65] * len(COUNTS),
            rated=[count // 3 for count in COUNTS],
            break_even=even,
        )
        for name, shift, even in (("cold", 0, 20), ("warm", 40, 10))
    ),
    missing="about 300 more rated questions",
    actions=("keep routing",),
    tables=(NumberTable(title="By week", columns=("week", "questions"), rows=(("2026-11-16", "400"),)),),
    notes=("An interval may miss.",),
    cost_unit="steps",
    facts={"questions": "400"},
)

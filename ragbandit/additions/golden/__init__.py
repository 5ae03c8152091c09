"""Golden questions: the workers' arms answer `learning.golden` once a period, and the policy learns the outcomes."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(
    chores={"golden": "chore:GoldenQuestions"},
    sections={"learning": "settings:GoldenSection"},
    needs=frozenset({"evaluation"}),
)

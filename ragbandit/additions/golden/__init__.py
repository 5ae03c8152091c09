"""Golden questions: all arms answer the questions of `learning.golden` once a period, and the policy learns from it."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(
    chores={"golden": "chore:GoldenQuestions"},
    sections={"learning": "settings:GoldenSection"},
    needs=frozenset({"evaluation"}),
)

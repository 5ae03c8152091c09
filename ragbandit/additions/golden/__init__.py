"""Golden questions: all arms answer the questions of `learning.golden` once a period, and the policy learns from it."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(
    chores={"golden": "chore:GoldenQuestions"},
    sections={"learning": "settings:GoldenSection"},
    checks={"golden": "checks:check_golden"},
    needs=frozenset({"evaluation"}),
)

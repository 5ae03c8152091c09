"""The policy `llm`: a language model is asked for the arm before the draw."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(
    policies={"llm": "policy:Llm"},
    steps={"picks": "step:Picks"},
    sections={"policy": "settings:PickSection"},
)

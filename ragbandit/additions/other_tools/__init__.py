"""Logs and ratings of other tools: `data questions`, `feedback import` and the setting `ratings`."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(
    verbs={"data questions": "verbs:questions", "feedback import": "verbs:import_"},
    chores={"ratings": "ratings.chore:FetchedRatings"},
    sections={"": "ratings.settings:RatingsSection"},
    pages=("logs.md",),
)

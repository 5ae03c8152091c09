"""The arm `cascade`: asks one arm, and a second one if the first answer fails a test."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(arms={"cascade": "arm:Cascade"}, arm_parts={"cascade": ("first", "then", "differs_from")})

"""Hypothesis: settings that give the same examples on every machine, and arms as callers may name them."""

from hypothesis import settings
from hypothesis import strategies as st

from ragbandit.shared.types import ArmName
from ragbandit.testing.policy_examples import ARMS

#: hypothesis without chance and without a stop watch: the same examples on every machine
steady = settings(derandomize=True, deadline=None, max_examples=60)

#: arms as a caller may name them: the ones that were learned, and any other text
offered_arms = st.lists(
    st.sampled_from(ARMS) | st.text(min_size=1, max_size=12).map(ArmName), min_size=1, max_size=6, unique=True
).map(tuple)

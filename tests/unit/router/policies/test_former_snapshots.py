"""States that the heads before wrote: they are read, give the same, and learn on alike."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import pmf_of_one, restored
from ragbandit.shared.types import Query
from ragbandit.testing.policy_examples import ARMS, made_features, made_updates

STATES = Path(__file__).parents[3] / "data" / "linear_snapshots.safetensors"


@pytest.mark.parametrize("name", ["mba"])
def test_former_snapshot_goes_on(name):
    """A state of the release before gives its scores and pmf, and those of 40 rows later, within 1e-4."""
    with safe_open(STATES, "numpy") as file:
        described = json.loads(file.metadata()["policies"])[name]
        arrays = {key.split("|")[1]: file.get_tensor(key) for key in file.keys() if key.startswith(name + "|")}  # noqa: SIM118
    policy = restored(make_policy(name.split()[0], params=described["params"]), arrays, described["facts"])
    for said, more in zip(described["said"], (0, 40), strict=True):
        for update in made_updates(more, first=151):
            policy.learn(update)
        for seed, (scores, pmf, _) in enumerate(said):
            output = pmf_of_one(policy, Query(text="q"), features=made_features(seed), arms=ARMS)
            assert output.scores == pytest.approx(scores, abs=1e-4)
            assert output.pmf == pytest.approx(pmf, abs=1e-4)

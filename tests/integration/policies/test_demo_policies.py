"""`make demo POLICY=NAME` has params for every policy, and what they name is made as it should be."""

import pytest

from ragbandit.examples.handbook.policies import PARAMS, TRAINED
from ragbandit.router.config.loading import load
from ragbandit.router.policies import make_policy
from tests.support.additions import needs
from tests.support.demo import run
from tests.support.policies import POLICIES
from tests.support.tiny_models import tiny_counts, tiny_encoder, tiny_trained

pytestmark = needs("local_models")  # the configuration of the demo has its keys

#: the real nets are too large for a unit test
SMALL = {"mba_paper": {"model": tiny_encoder(), "max_tokens": 16}} | {key: {"max_tokens": 16} for key in TRAINED}

#: files that are made before the policy runs
MADE = {"popularity": {"counts": tiny_counts()}}


@pytest.mark.parametrize("name", POLICIES)
def test_params_are_accepted(name):
    """The policy is made with the demo's params, and a folder if it is trained first."""
    trained = {"trained": tiny_trained(name)} if name in TRAINED else MADE.get(name, {})
    params = PARAMS.get(name, {})
    policy = make_policy(name, params=params | trained | SMALL.get(name, {}))
    assert {key: policy.params[key] for key in params} == params


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {*TRAINED, *MADE}))
def test_settings_read_back_as_they_were_meant(name, tmp_path):
    """The environment that the service is given names the policy with these very params, and no incumbent."""
    policy = load(environ=run(name, tmp_path)).settings.policy
    assert (policy.name, policy.params, policy.incumbent) == (name, PARAMS.get(name, {}), None)

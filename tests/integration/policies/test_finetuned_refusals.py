"""`mba_paper` on a tiny model: the contract; wrong params, missing packages, weights that would spoil."""

import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import apply_update
from ragbandit.shared.errors import ConfigError
from ragbandit.testing.policies import ARMS, POLICY_CHECKS, made_updates, sha_of, taught
from tests.support.finetuned import READING, mba, output_of
from tests.support.policies import maker
from tests.support.tiny_models import tiny_encoder


@pytest.mark.parametrize("params", [{"max_tokens": 41}, {"model": "./nowhere"}])
def test_wrong_params_are_refused(params):
    """A model that cannot be used, or more tokens than it reads, is a ConfigError with field and remedy."""
    with pytest.raises(ConfigError) as caught:
        make_policy("mba_paper", params=READING | params)
    assert caught.value.field == f"policy.params.{next(iter(params))}"
    assert caught.value.remedy


def test_modules_import_no_torch():
    """The policy and what the fine-tuned policies share are imported without torch or transformers."""
    code = (
        "import sys\n"
        "from ragbandit.router.policies.algorithms import mba_paper\n"
        "print(sorted({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "[]"
    assert Path(tiny_encoder()).is_dir()


@pytest.mark.parametrize(
    ("arm", "unit", "head"),
    [(ARMS[0], 1e-37, 1e37), (ARMS[0], 1e-20, 1e20), ("newcomer", 1e18, 1.0)],
    ids=["infinite", "infinite when squared", "of a new head"],
)
def test_gradient_that_would_spoil_the_weights_is_refused(arm, unit, head):
    """Where the loss is finite and a gradient is not, or its square is not, the row is a PolicyFault and the state
    stays as it was, also where the row's arm is new.
    """
    arrays, facts = taught(mba, made_updates(12)).state()
    arrays = {name: array.copy() for name, array in arrays.items()}
    arrays["pre"][0, :, :-1], arrays["pre"][0, :, -1] = 0.0, unit  # what every unit of the layer gives
    for name in facts["seen"]:
        arrays[f"head/{name}"][0, :-1], arrays[f"head/{name}"][0, -1] = head, 0.0
    policy = mba()
    policy.restore(arrays, facts)
    update = replace(made_updates(1, first=13)[0], arm=arm)
    before = sha_of(policy)
    assert all(math.isfinite(score) for score in output_of(policy, update.query.text).scores)
    assert not apply_update(policy, update)
    assert sha_of(policy) == before


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_missing_package_names_the_field(monkeypatch, package, tmp_path):
    """Without torch or transformers a policy that needs them is a ConfigError of `model` that says what to install."""
    shutil.copytree(tiny_encoder(), tmp_path / "model")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"the package {package} is missing") as caught:
        make_policy("mba_paper", params=READING | {"model": str(tmp_path / "model")})
    assert caught.value.field == "policy.params.model"
    assert "pip install '.[models]'" in caught.value.remedy


@pytest.mark.parametrize("check", POLICY_CHECKS, ids=lambda check: check.__name__)
def test_contract(check):
    """It passes every check of the contract."""
    check(maker("mba_paper"))

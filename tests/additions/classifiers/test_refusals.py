"""The classifiers on tiny models: the contract; trained folders and packages that cannot be used."""

import shutil
import subprocess
import sys

import pytest

from ragbandit.router.policies import make_policy
from ragbandit.shared.errors import ConfigError
from ragbandit.testing.policies import POLICY_CHECKS
from tests.support.finetuned import READING
from tests.support.policies import maker
from tests.support.tiny_models import tiny_encoder, tiny_trained


@pytest.mark.parametrize("trained", ["nowhere", tiny_encoder(), tiny_trained("multi_label")])
def test_wrong_folders_are_refused(trained):
    """A folder that cannot be used is a ConfigError with field and remedy."""
    with pytest.raises(ConfigError) as caught:
        make_policy("adaptive_rag", params=READING | {"trained": trained})
    assert caught.value.field == "policy.params.trained"
    assert caught.value.remedy


def test_modules_import_no_torch():
    """The policies are imported without torch or transformers."""
    code = (
        "import sys\n"
        "from ragbandit.additions.classifiers import policies\n"
        "print(sorted({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_missing_package_names_the_field(monkeypatch, package, tmp_path):
    """Without torch or transformers a trained policy is a ConfigError of `model` that says what to install."""
    shutil.copytree(tiny_trained("adaptive_rag"), tmp_path / "model")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"the package {package} is missing") as caught:
        make_policy("adaptive_rag", params=READING | {"trained": str(tmp_path / "model")})
    assert caught.value.field == "policy.params.model"
    assert "pip install '.[models]'" in caught.value.remedy


@pytest.mark.parametrize("check", POLICY_CHECKS, ids=lambda check: check.__name__)
def test_contract(check):
    """A classifier passes every check of the contract; `multi_label` learns and is stored as `adaptive_rag`."""
    check(maker("adaptive_rag"))

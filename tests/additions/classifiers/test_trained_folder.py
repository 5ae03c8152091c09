"""Folders of trained classifiers: written, read, refused where damaged."""

import json
import shutil

import pytest

from ragbandit.shared.errors import ConfigError, SnapshotError
from ragbandit.testing.policies import made_query
from tests.additions.classifiers.examples import adaptive, multi, rows_by_word
from tests.support.finetuned import output_of
from tests.support.tiny_models import tiny_trained


@pytest.mark.parametrize("make", [adaptive, multi], ids=["adaptive_rag", "multi_label"])
def test_trained_folder_decides_as_the_fitted_policy(make, tmp_path):
    """The policy that reads a saved folder says, bit for bit, what the one said that was fitted; its state names the
    folder and holds no weights.
    """
    policy = make()
    report = policy.fit(rows_by_word(10))
    policy.save(tmp_path / "out")
    again = make(trained=str(tmp_path / "out"))
    for seed in range(5):
        assert output_of(again, made_query(seed).text) == output_of(policy, made_query(seed).text)
    assert again.report == report
    arrays, facts = again.state()
    assert arrays == {}
    assert set(facts) == {"updates", "seen", "trained"}


def test_state_of_another_folder_is_refused():
    """A snapshot made with another trained folder, or with none, is a SnapshotError."""
    ours, other = tiny_trained("adaptive_rag"), tiny_trained("adaptive_rag", seed=2)
    policy = adaptive(trained=ours)
    for other_policy in (adaptive(trained=other), adaptive()):
        with pytest.raises(SnapshotError, match="another trained folder"):
            policy.restore(*other_policy.state())
    with pytest.raises(SnapshotError, match="another trained folder"):
        adaptive().restore(*policy.state())


def test_fit_replaces_the_folder():
    """A policy with a trained folder that is fitted again decides by its own weights, which no other state fits."""
    policy, plain = adaptive(trained=tiny_trained("adaptive_rag")), adaptive()
    for one in (policy, plain):
        one.fit(rows_by_word(10))
    assert output_of(policy) == output_of(plain)
    with pytest.raises(SnapshotError, match="another trained folder"):
        adaptive(trained=tiny_trained("adaptive_rag")).restore(*policy.state())


def _damage(folder, what):
    if what == "no facts":
        (folder / "ragbandit.json").unlink()
    elif what == "no weights":
        (folder / "model.safetensors").unlink()
    elif what.endswith(".safetensors"):
        content = (folder / what).read_bytes()
        (folder / what).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        facts = json.loads((folder / "ragbandit.json").read_text())
        facts |= {"format": {"format": 2}, "list": [], "arms": {"arms": 3}, "one arm": {"arms": ["a"]}}[what] or {}
        (folder / "ragbandit.json").write_text("[]" if what == "list" else json.dumps(facts))


@pytest.mark.parametrize(
    "what", ["no facts", "no weights", "model.safetensors", "layers.safetensors", "format", "list", "arms", "one arm"]
)
def test_damaged_folder_is_refused(tmp_path, what):
    """A folder that lacks a file, or whose file was changed by one bit, is a ConfigError of `trained` with a remedy."""
    folder = tmp_path / "out"
    shutil.copytree(tiny_trained("adaptive_rag"), folder)
    _damage(folder, what)
    with pytest.raises(ConfigError) as caught:
        adaptive(trained=str(folder))
    assert caught.value.field == "policy.params.trained"
    assert "ragbandit policy train" in caught.value.remedy


def test_folder_in_use_is_left_alone(tmp_path):
    """Saving to an existing file or folder is a ConfigError and changes nothing; an empty folder is filled."""
    policy = adaptive()
    policy.fit(rows_by_word(10))
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name in ("used", "file"):
        with pytest.raises(ConfigError, match="already exists"):
            policy.save(tmp_path / name)
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["mine"]
    policy.save(tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "used"]
    assert adaptive(trained=str(tmp_path / "empty")).report is not None
    plain = tmp_path / "plain"
    plain.touch()
    assert {path.stat().st_mode for path in (tmp_path / "empty").iterdir()} == {plain.stat().st_mode}

"""The encoder that a store began with is the store's: packages, hubs and releases that come and go change nothing."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select, update

from ragbandit import Router
from ragbandit.router.config.loading import load
from ragbandit.router.encoders import forward, weights
from ragbandit.router.encoders.half_precision import half_precision_hash
from ragbandit.router.encoders.hashing import HashingEncoder
from ragbandit.router.encoders.weights import DEFAULT_ENCODER
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.setup import requirements
from ragbandit.router.serving.setup.bootstrap import encoder_of
from ragbandit.router.storage.sql.tables import policies
from ragbandit.shared.errors import ConfigError, Conflict
from tests.support import command
from tests.support.audits import assert_compared
from tests.support.tiny_models import tiny_encoder

WHEEL = weights._WHEELS[DEFAULT_ENCODER].pin
COUNTED = half_precision_hash(HashingEncoder(dimension=24).hash)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Opens routers on one store, whose `encoder` is what is given; no hub has the default encoder, a wheel does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(weights, "_from_wheel", lambda wheel, **_: Path(tiny_encoder(seed=1)))

    def opened(label="main", **encoder):
        arms = {name: {"run_by": "caller"} for name in ("cheap", "dear")}
        chosen = {"dimension": 24, "max_tokens": 40, "device": "cpu", "precision": "float32", "threads": 1} | encoder
        tree = {"data_dir": "data", "arms": arms, "policy": {"name": "linucb", "label": label}, "encoder": chosen}
        Path("config.yaml").write_text(json.dumps(tree))
        return Router.open(load("config.yaml").settings, jobs=MemoryJobs())

    return opened


@pytest.fixture
def without_torch(monkeypatch):
    """Calls that hide the extra `models`, and that bring it back."""

    def hide(*, hidden=True):
        monkeypatch.setattr(requirements, "PACKAGES", ("no_such_package",) if hidden else ("torch",))

    return hide


def teach(router, count=6):
    """Decisions with reward, learned; the hash of the encoder."""
    for number in range(count):
        decision = router.route(f"Which boat of {number} came first?")
        router.outcome(decision.id, answer="a", steps=1)
        router.feedback(decision.id, rating=number % 2 == 0)
    assert router.learn() == count
    return router.encoder.hash


def origin(router):
    with router.database.read() as connection:
        return json.loads(connection.execute(select(policies.c.encoder)).scalar_one())


def goes_on(router, *, hashed, learned):
    """Whether the policy that is served has learned so many rows by this encoder, and nothing is learned again."""
    serving = router.service.serving
    assert (serving.rebuilding, serving.last_seq, sum(serving.policy.seen.values())) == (False, learned, learned)
    assert router.encoder.hash == hashed
    teach(router, 1)
    assert router.verify(deep=True).ok
    return True


def learned_elsewhere(settings):
    """Another processor's audit of the store, the hash of its encoder there, and then six further rows."""
    with Router.open(settings, jobs=MemoryJobs()) as router:
        return router.verify(deep=True), teach(router)


def test_another_processor_has_the_same_encoder(store, other_torch):
    """Routers on two processors have the same encoder, verify what the other learned and learn on."""
    with store(model=tiny_encoder()) as router:
        hashed = teach(router)
        settings = router.settings.model_copy(update={"data_dir": str(Path("data").absolute())})
        verdict, there = other_torch.call(learned_elsewhere, settings)
        assert_compared(verdict, router.verify(deep=True))
        assert (there, verdict.updates) == (hashed, 6)


def test_a_store_made_with_two_threads_verifies_with_one(store, other_torch):
    """A store goes on if a release or a setting changes the number of threads: features differ by rounding at most, the
    policy is its ledger's, and another processor, which has one thread, verifies it and learns on.
    """
    texts = [f"Which boat of {number} came first, and who sailed her?" for number in range(40)]
    with store(model=tiny_encoder(), threads=2) as router:
        hashed, features = teach(router), router.encoder.encode(texts)
    with store(model=tiny_encoder(), threads=1) as router:
        np.testing.assert_allclose(router.encoder.encode(texts), features, atol=1e-3)  # docs/machines.md
        assert_compared(router.verify(deep=True))
        assert goes_on(router, hashed=hashed, learned=6)
        settings = router.settings.model_copy(update={"data_dir": str(Path("data").absolute())})
        verdict, there = other_torch.call(learned_elsewhere, settings)
        assert_compared(verdict, router.verify(deep=True))
        assert (there, verdict.updates) == (hashed, 7)


def test_a_store_that_began_without_torch_keeps_its_encoder_when_torch_comes(store, without_torch, caplog):
    """It begins with the encoder that needs no model, which is said; torch comes: nothing changes, nothing is lost."""
    caplog.set_level("INFO", logger="ragbandit.bootstrap")
    without_torch()
    with store() as router:
        assert teach(router) == COUNTED
        assert origin(router) == {"model": "hashing", "wheel": None, "sha256": None}
    assert "the encoder is hashing: style and words, without a model, since no_such_package is not" in caplog.text
    without_torch(hidden=False)
    assert "encoder.model: auto is hashing: the store began with it" in command.run("validate").output
    assert encoder_of(load("config.yaml").settings).hash == COUNTED  # the encoder that replays use
    with store() as router:
        assert goes_on(router, hashed=COUNTED, learned=6)
    status = command.run("status").output
    assert "encoder   hashing" in status
    with pytest.raises(Conflict, match="was learned with encoder") as caught:
        store(model=tiny_encoder())
    assert "auto is the one that the store began with" in caught.value.remedy


def test_a_store_that_began_with_the_stand_in_keeps_it_when_the_hub_comes(store, without_torch, tmp_path):
    """A store keeps the stand-in, recorded or not (imported rows name no model); without torch the start is refused."""
    with store() as router:
        hashed = teach(router)
        told = origin(router)
        assert (told["model"], told["wheel"], len(told["sha256"])) == (DEFAULT_ENCODER, WHEEL, 64)
    home = tmp_path / "hub" / f"models--{DEFAULT_ENCODER.replace('/', '--')}"
    shutil.copytree(tiny_encoder(), home / "snapshots" / ("a" * 40))
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("a" * 40)
    assert weights.resolve(DEFAULT_ENCODER).wheel is None  # a new store would have the hub's
    with store() as router:
        assert goes_on(router, hashed=hashed, learned=6)
        with router.database.write() as connection:
            connection.execute(update(policies).values(encoder=None))
    with store(model=DEFAULT_ENCODER) as router:
        assert goes_on(router, hashed=hashed, learned=7)
        assert origin(router) == told
    without_torch()
    with pytest.raises(ConfigError) as caught:
        store()
    assert f"; the store began with {DEFAULT_ENCODER}; {requirements.CHANGE})" in str(caught.value)
    with store(label="next", model="hashing") as router:  # the remedy of the message
        router.learn()
        assert router.encoder.hash == COUNTED
        teach(router)
        router.refresh()
        assert goes_on(router, hashed=COUNTED, learned=6)


@pytest.mark.parametrize(
    ("precision", "features"),
    [("float32", {"amx_bf16": True}), ("bfloat16", {"avx512_vnni": True}), ("int8", {})],
    ids=["float32", "bfloat16", "int8"],
)
def test_a_store_keeps_its_precision(store, monkeypatch, precision, features):
    """A store verifies and learns with the precision that it began with, whatever `auto` is on this processor."""
    with store(precision=precision) as router:
        hashed = teach(router)

    monkeypatch.setattr(forward, "processor_features", lambda: features)
    with store(precision="auto") as router:
        assert goes_on(router, hashed=hashed, learned=6)

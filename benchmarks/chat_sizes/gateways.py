"""The measured gateways, each a process of its own: this tree, another revision of it, LiteLLM's proxy."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.chat_sizes.cells import Setup
from benchmarks.chat_sizes.processor import Callgrind
from benchmarks.litellm_proxy import LITELLM_ENVIRONMENT, litellm_command
from benchmarks.service_process import environment, free_port

ROOT: Final = Path(__file__).parents[2]
#: the environment of `make clients` that has LiteLLM
LITELLM: Final = ROOT / ".venv-clients" / "litellm"
#: longest end of a process, seconds
_END_S: Final = 30.0
_KEY: Final = {"OPENAI_API_KEY": "any", "ANTHROPIC_API_KEY": "any"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where a gateway comes from."""

    name: str
    #: a checkout of this repository, or an environment with LiteLLM
    folder: Path
    is_litellm: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Gateway:
    """A started server. The name of the model server itself is ""."""

    name: str
    port: int
    process: "subprocess.Popen[bytes]"
    log: Path
    callgrind: Callgrind | None = None


def exported(revision: str, *, folder: Path) -> Source:
    """The files of a git revision, written into this folder. Ends the program if there is no such revision."""
    git = ("git", "-C", str(ROOT))
    short = subprocess.run([*git, "rev-parse", "--short", f"{revision}^{{commit}}"], capture_output=True, text=True)
    if short.returncode:
        raise SystemExit(f"--base {revision}: {short.stderr.strip()}")
    name = short.stdout.strip()
    packed = subprocess.run([*git, "archive", name], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
    write_client = (sys.executable, "-c", "import hatch_build; hatch_build.write_client()")
    subprocess.run(write_client, cwd=folder, check=True)
    return Source(name=name, folder=folder)


@contextmanager
def model_server() -> Iterator[Gateway]:
    """The model server that all gateways ask."""
    port = free_port()
    command = (sys.executable, "-m", "benchmarks.chat_sizes.model_server", str(port))
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), start_new_session=True)
    try:
        yield Gateway(name="", port=port, process=process, log=Path(os.devnull))
    finally:
        _end(process)


@contextmanager
def started(source: Source, *, setup: Setup, model: Gateway, folder: Path, counts: bool = False) -> Iterator[Gateway]:
    """A gateway with these settings in front of the model server. counts: its instructions are counted."""
    port, folder = free_port(), folder / source.name.replace(" ", "-")
    folder.mkdir()
    environ = environment() | _KEY
    if source.is_litellm:
        models = [_litellm_model(name, setup=setup, port=model.port) for name in ("small", "large")]
        command = litellm_command(source.folder, models=models, folder=folder, port=port)
        environ |= LITELLM_ENVIRONMENT
    else:
        # The revision's own modules come before those of the tree that is installed in this environment.
        environ["PYTHONPATH"] = str(source.folder)
        command = _service(
            source, settings=_settings(setup, folder=folder, port=port, model=model.port), environ=environ
        )
    measured = Callgrind.command(folder) if counts else ()
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*measured, *command], cwd=folder, env=environ, stdout=file, stderr=file, start_new_session=True
        )
    try:
        callgrind = Callgrind(process.pid, folder=folder) if counts else None
        yield Gateway(name=source.name, port=port, process=process, log=log, callgrind=callgrind)
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _service(source: Source, *, settings: dict[str, Any], environ: dict[str, str]) -> tuple[str, ...]:
    """The command of a service of this checkout, whose store has been made."""
    folder = Path(settings["data_dir"]).parent
    config = folder / "config.yaml"
    config.write_text(json.dumps(settings))

    def run(*command: str) -> str:
        done = subprocess.run([sys.executable, *command], cwd=folder, env=environ, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{source.name}: {done.stderr[-2000:]}")
        return done.stdout.strip()

    place = Path(run("-c", "import ragbandit; print(ragbandit.__file__)"))
    assert place.is_relative_to(source.folder), f"{source.name} would run {place}"
    run("-m", "ragbandit", "migrate", "--config", str(config))
    return (sys.executable, "-m", "ragbandit", "serve", "--config", str(config))


def _settings(setup: Setup, *, folder: Path, port: int, model: int) -> dict[str, Any]:
    url, prices = f"http://127.0.0.1:{model}", {"input": 1.0, "output": 2.0}
    client = {
        "chat": {"name": "openai", "openai": {"base_url": f"{url}/v1"}},
        "messages": {"name": "anthropic", "anthropic": {"base_url": url}},
    }[setup.server]
    names = ("small", "large")
    return {
        "data_dir": str(folder / "data"),
        "encoder": {"model": "hashing"} if setup.encoder == "hashing" else {},
        "server": {"port": port},
        "conversation": {"unit": setup.unit},
        "generators": {name: {"model": name, "token_prices": prices, **client} for name in names},
        "arms": {name: {"class": "model", "generator": name} for name in names},
    }


def _litellm_model(name: str, *, setup: Setup, port: int) -> dict[str, Any]:
    url = f"http://127.0.0.1:{port}"
    if setup.server == "messages":  # a name that its list of models has
        return {"model": "anthropic/claude-sonnet-4-5", "api_base": url, "api_key": "any"}
    return {"model": f"openai/{name}", "api_base": f"{url}/v1", "api_key": "any"}


def has_ended(gateway: Gateway) -> bool:
    """Whether its process has ended."""
    return gateway.process.poll() is not None


def log_end(gateway: Gateway) -> str:
    """The last lines of its log."""
    return gateway.log.read_text(errors="replace")[-1500:]

"""Shared parts of the demos: paths, settings, and running a verb of the command with them."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
DATA: Final = Path(".ragbandit") / "demo"  # in the working directory, unless --data names another folder
TABLE: Final = HERE / "table.jsonl"  # written by `make handbook-table`
ARMS: Final = ("no_retrieval", "single_step", "multi_step")
Row = dict[str, Any]


def environment_of(config: Path, *, data: Path) -> dict[str, str]:
    """The environment of this process with this configuration and a free port, without settings of other services."""
    foreign = ("RAGBANDIT_", "DATABASE_URL", "REDIS_URL")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment |= {"RAGBANDIT_CONFIG": str(config), "RAGBANDIT_SERVER__PORT": str(port)}
    return environment | {"RAGBANDIT_DATA_DIR": str(data)}


def read_questions(file: Path = HERE / "questions.jsonl") -> list[Row]:
    """The labelled questions of the file."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def ragbandit(
    arguments: list[str], *, environment: dict[str, str], seen: bool = False, timeout_s: float | None = 1800
) -> str:
    """Run a verb of the command. Returns its standard output. Raises SystemExit with its output if it fails.

    seen: whether its progress and warnings go to the terminal.
    """
    done = subprocess.run(
        [sys.executable, "-m", "ragbandit", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=None if seen else subprocess.PIPE,
        text=True,
        timeout=timeout_s,
    )
    told = {"evaluate": {1}, "verify": {1}, "advise": {3, 4}}.get(arguments[0], set())  # results, and not failures
    if done.returncode != 0 and not (done.returncode in told and done.stdout):
        said = f":\n{done.stderr or done.stdout}" if done.stderr or done.stdout else ""
        raise SystemExit(f"ragbandit {' '.join(arguments)} failed{said}")
    return done.stdout

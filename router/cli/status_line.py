"""The line of `ragbandit status --line`. A file stores the line, so that no slow import delays its printing.

Each `ragbandit status` writes the file. Printing a line older than FRESH_S starts a `ragbandit status`.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Final

from ragbandit.shared.caches import cache_root
from ragbandit.shared.files import write_file
from ragbandit.shared.texts.formats import duration, one_line

#: age from which a new line is made, seconds
FRESH_S: Final = 300.0
#: time after the start of a `ragbandit status` in which no second one is started, seconds
_BEGUN_S: Final = 60.0
#: age from which the line ends with its age, seconds
_OLD_S: Final = 900.0
_PLAIN_VARIABLES: Final = ("DATABASE_URL", "REDIS_URL")


def line_file(config: str | None, *, label: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """The file of the line for these options of `ragbandit status` and the settings in the environment."""
    place = os.path.abspath(config or environ.get("RAGBANDIT_CONFIG") or "config.yaml")
    settings = sorted((k, v) for k, v in environ.items() if k.startswith("RAGBANDIT_") or k in _PLAIN_VARIABLES)
    name = hashlib.sha256(json.dumps([place, label, settings]).encode()).hexdigest()[:32]
    return cache_root() / "status" / f"{name}.json"


def store_line(line: str, *, file: Path) -> None:
    """Write the line to its file; do nothing if the file cannot be written."""
    try:
        write_file(file, json.dumps({"line": line, "made_at": time.time()}).encode(), durable=False)
    except OSError:
        return


def stored_line(config: str | None, *, label: str | None) -> str:
    """The line in the file. Starts a process that makes a new line if it is older than FRESH_S."""
    file, now = line_file(config, label=label), time.time()
    try:
        stored = json.loads(file.read_bytes())
        line, age = one_line(stored["line"]), now - float(stored["made_at"])
    except (OSError, ValueError, KeyError, TypeError):
        line, age = "", float("inf")
    is_begun = False
    if not 0.0 <= age < FRESH_S:
        is_begun = _start_status(config, label=label, marker=file.with_suffix(".begun"), now=now)
    if line:
        return line if age < _OLD_S else f"{line} ({duration(age)} ago)"
    return "RagBandit: the line is being made" if is_begun else "RagBandit: no line yet, `ragbandit status` says why"


def line_of_command(arguments: Sequence[str]) -> str | None:
    """The line if the arguments are `status --line` with plain options, else None; loads no parser of commands."""
    verb, *given = arguments or [""]
    if verb != "status" or given.count("--line") != 1:
        return None
    given.remove("--line")
    options = dict(zip(given[::2], given[1::2], strict=False))
    names = {"--config": "config", "-c": "config", "--label": "label"}
    values = {names[name]: value for name, value in options.items() if name in names and not value.startswith("-")}
    if 2 * len(values) != len(given):
        return None
    return stored_line(values.get("config"), label=values.get("label"))


def _start_status(config: str | None, *, label: str | None, marker: Path, now: float) -> bool:
    """Start a `ragbandit status`, which writes the line. False if one began within _BEGUN_S, or on failure."""
    try:
        if abs(now - marker.stat().st_mtime) < _BEGUN_S:
            return False
    except OSError:
        pass  # no process was started yet
    try:
        write_file(marker, b"", durable=False)
    except OSError:
        return False
    options = [part for name, value in (("config", config), ("label", label)) if value for part in (f"--{name}", value)]
    none = DEVNULL
    command = [sys.executable, "-m", "ragbandit", "status", "--json", *options]
    Popen(command, stdin=none, stdout=none, stderr=none, start_new_session=True)  # noqa: S603 - our own command
    return True

"""The line of `ragbandit status --line`. A file keeps it, so that printing it needs no module that takes long to load.

Each `ragbandit status` writes the file; printing a line older than FRESH_S starts one.
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

from ragbandit.shared.files import cache_root, write_file
from ragbandit.shared.texts.formats import duration, one_line

#: age from which a line is made again, seconds
FRESH_S: Final = 300.0
#: time in which no second process is started to make it, seconds
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


def keep_line(line: str, *, file: Path) -> None:
    """Write the line, unless the folder of caches cannot be written."""
    try:
        write_file(file, json.dumps({"line": line, "made_at": time.time()}).encode(), durable=False)
    except OSError:
        return


def kept_line(config: str | None, *, label: str | None) -> str:
    """The kept line; starts a process that makes a new one if it is older than FRESH_S."""
    file, now = line_file(config, label=label), time.time()
    try:
        kept = json.loads(file.read_bytes())
        line, age = one_line(kept["line"]), now - float(kept["made_at"])
    except (OSError, ValueError, KeyError, TypeError):
        line, age = "", float("inf")
    is_begun = False
    if not 0.0 <= age < FRESH_S:
        is_begun = _begin(config, label=label, marker=file.with_suffix(".begun"), now=now)
    if line:
        return line if age < _OLD_S else f"{line} ({duration(age)} ago)"
    return "RagBandit: the line is being made" if is_begun else "RagBandit: no line yet, `ragbandit status` says why"


def line_of_command(arguments: Sequence[str]) -> str | None:
    """The line for the arguments of a command, without its parser; None if they are not plainly `status --line`."""
    verb, *given = arguments or [""]
    if verb != "status" or given.count("--line") != 1:
        return None
    given.remove("--line")
    options = dict(zip(given[::2], given[1::2], strict=False))
    names = {"--config": "config", "-c": "config", "--label": "label"}
    values = {names[name]: value for name, value in options.items() if name in names and not value.startswith("-")}
    if 2 * len(values) != len(given):
        return None
    return kept_line(values.get("config"), label=values.get("label"))


def _begin(config: str | None, *, label: str | None, marker: Path, now: float) -> bool:
    """Start a `ragbandit status`, which writes the line; False if one was started within _BEGUN_S."""
    try:
        if abs(now - marker.stat().st_mtime) < _BEGUN_S:
            return False
    except OSError:
        pass  # none was started yet
    try:
        write_file(marker, b"", durable=False)
    except OSError:
        return False
    options = [part for name, value in (("config", config), ("label", label)) if value for part in (f"--{name}", value)]
    none = DEVNULL
    command = [sys.executable, "-m", "ragbandit", "status", "--json", *options]
    Popen(command, stdin=none, stdout=none, stderr=none, start_new_session=True)  # noqa: S603 - of ours
    return True

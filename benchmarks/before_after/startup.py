"""Start of the command: how long `--help`, `--version`, `validate` and `status` of an empty store take."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VERBS = ("--help", "--version", "validate", "status --help")


def measure() -> dict[str, float]:
    """The least of four runs each, in a folder with a small configuration."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.yaml").write_text("arms: {fast: {run_by: caller}}\n", encoding="utf-8")
        for verb in VERBS:
            runs = [_run(verb.split(), folder=folder) for _ in range(4)]
            found[f"ragbandit {verb} [ms of CPU]"] = min(cpu for cpu, _ in runs)
            found[f"ragbandit {verb} [ms]"] = min(wall for _, wall in runs)
    return found


def _run(words: list[str], *, folder: str) -> tuple[float, float]:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "ragbandit", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=60,
    )
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime), 1000 * wall

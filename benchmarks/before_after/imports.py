"""Start of the library: seconds of processor time until `Router` is there."""

import resource
import subprocess
import sys


def measure() -> dict[str, float]:
    """The least of three starts each."""
    return {
        f"python -c '{line}' [ms of CPU]": min(_cpu(line) for _ in range(3))
        for line in ("import ragbandit", "from ragbandit import Router")
    }


def _cpu(line: str) -> float:
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", line], check=True, timeout=60)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime)

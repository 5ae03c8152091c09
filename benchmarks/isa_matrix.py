"""`make isa-matrix`: the tests that compute with torch and numpy, once under each instruction set and thread count.

Libraries choose their loops by what the processor has; each line of the table disables some instructions, or
runs busy loops at the same time. A setting that this processor cannot have is skipped, with the reason.
`python -m benchmarks.isa_matrix [--only AVX2 ...] [TEST FILES]`; the exit code is 1 if a test failed.
"""

import argparse
import importlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.figures import machine

ROOT = Path(__file__).parents[1]

#: the tests of whatever computes features, texts, propensities, states and estimates
FILES = (
    "tests/integration/encoders",
    "tests/integration/generators/test_static_batches.py",
    "tests/integration/generators/test_local_generator.py",
    "tests/integration/generators/test_local_details.py",
    "tests/integration/generators/test_self_rag_trained_real.py",
    "tests/integration/learning/test_audit.py",
    "tests/integration/offline/test_training.py",
    "tests/integration/policies",
    "tests/integration/retrievers/test_cross_encoder.py",
    "tests/integration/retrievers/test_dense.py",
    "tests/integration/retrievers/test_nearest.py",
    "tests/integration/retrievers/test_reranking_settings.py",
    "tests/unit/router/encoders",
    "tests/unit/router/offline/estimation",
    "tests/unit/router/policies",
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One line of the table."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    #: flags of /proc/cpuinfo without which the setting means nothing here
    needs: tuple[str, ...] = ()
    #: whether one busy loop per core runs during the tests
    busy: bool = False


SETTINGS = (
    Setting(name="as it is"),
    Setting(name="oneDNN AVX2", environment={"ONEDNN_MAX_CPU_ISA": "AVX2"}, needs=("avx2",)),
    Setting(name="oneDNN AVX512_CORE", environment={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, needs=("avx512bw",)),
    Setting(
        name="oneDNN AVX512_CORE_BF16", environment={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, needs=("avx512_bf16",)
    ),
    Setting(name="oneDNN AVX512_CORE_AMX", environment={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}, needs=("amx_bf16",)),
    Setting(name="torch AVX2", environment={"ATEN_CPU_CAPABILITY": "avx2"}, needs=("avx2",)),
    Setting(name="torch without vectors", environment={"ATEN_CPU_CAPABILITY": "default"}),
    Setting(name="numpy without AVX512", environment={"NPY_DISABLE_CPU_FEATURES": "{avx512}"}, needs=("avx512f",)),
    Setting(name="numpy baseline", environment={"NPY_DISABLE_CPU_FEATURES": "{all}"}, needs=("avx2",)),
    Setting(name="OpenBLAS Haswell", environment={"OPENBLAS_CORETYPE": "Haswell"}, needs=("avx2",)),
    Setting(name="OpenBLAS SkylakeX", environment={"OPENBLAS_CORETYPE": "SkylakeX"}, needs=("avx512bw",)),
    Setting(name="1 thread", environment={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}),
    Setting(name="2 threads", environment={"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}),
    Setting(name="beside busy loops", busy=True),
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Counts of one pytest run; `failed` holds errors as well."""

    passed: int
    failed: int
    seconds: float
    #: the lines that name a failure
    names: tuple[str, ...] = ()


def processor_flags() -> frozenset[str]:
    """The flags in /proc/cpuinfo; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    found = re.search(r"^flags\s*:(.*)$", text, re.M)
    return frozenset(found[1].split()) if found else frozenset()


def skipped(setting: Setting, *, flags: frozenset[str]) -> str | None:
    """The reason why a processor with these flags cannot have the setting, or None."""
    missing = [need for need in setting.needs if need not in flags]
    return f"the processor has no {', '.join(missing)}" if missing else None


def counts(printed: str, *, seconds: float) -> Result:
    """The counts at the end of pytest's output. A run without them is one failure."""
    found = {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|error)", printed[-2000:])}
    names = tuple(line for line in printed.splitlines() if line.startswith(("FAILED ", "ERROR ")))
    failed = found.get("failed", 0) + found.get("error", 0)
    if not found:
        failed, names = 1, (f"pytest ended without a count: {printed.strip()[-300:]}",)
    return Result(passed=found.get("passed", 0), failed=failed, seconds=seconds, names=names)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """That many processes that only compute, for as long as the block runs."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()


def main(arguments: Sequence[str] = ()) -> int:
    """Print the table line by line; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="only settings whose names contain one of these words")
    parser.add_argument("files", nargs="*", default=[])
    asked = parser.parse_args(arguments)
    console, flags = Console(width=120), processor_flags()
    table = Table("setting", "passed", "failed", "seconds", "", title="tests by instruction set")
    broken: list[str] = []
    for setting in SETTINGS:
        if asked.only and not any(word in setting.name for word in asked.only):
            continue
        if reason := skipped(setting, flags=flags):
            table.add_row(setting.name, "", "", "", f"skipped: {reason}")
            continue
        result = _run(setting, files=asked.files or FILES)
        table.add_row(setting.name, str(result.passed), str(result.failed), f"{result.seconds:.0f}", "")
        console.print(f"{setting.name}: {result.passed} passed, {result.failed} failed, {result.seconds:.0f} s")
        broken += [f"{setting.name}: {line}" for line in result.names]
        broken += [setting.name] * bool(result.failed and not result.names)
    console.print(table)
    console.print(machine())
    for line in broken:
        console.print(line, markup=False)
    return int(bool(broken))


def _run(setting: Setting, *, files: Sequence[str]) -> Result:
    environment = {name: value.format(**_numpy_features()) for name, value in setting.environment.items()}
    command = [sys.executable, "-m", "pytest", *files, "-q", "-m", "not slow and not gpu", "-p", "no:cacheprovider"]
    began = time.monotonic()
    with busy_loops(os.cpu_count() or 1) if setting.busy else nullcontext():
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    return counts(done.stdout, seconds=time.monotonic() - began)


def _numpy_features() -> dict[str, str]:
    """The features that numpy uses beyond its baseline and this processor has: all of them, and AVX512's part."""
    core = importlib.import_module("numpy._core._multiarray_umath")
    found = [name for name in core.__cpu_dispatch__ if core.__cpu_features__[name]]
    return {"all": " ".join(found), "avx512": " ".join(name for name in found if "512" in name or name == "X86_V4")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`make isa-matrix`: the tests that compute with torch and numpy, once under each instruction set and thread count.

Libraries choose their loops by what the processor has; each setting disables some instructions, or runs busy loops at
the same time. A setting that this processor cannot have is skipped, with the reason.
`python -m benchmarks.isa_matrix [--only AVX2 ...] [TEST FILES]`; the exit code is 1 if a test failed.
"""

import argparse
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.figures import machine

ROOT = Path(__file__).parents[1]

#: the tests of whatever computes features, texts, propensities, states and estimates
FILES = (
    "tests/additions/local_models",
    "tests/integration/encoders",
    "tests/integration/generators",
    "tests/integration/learning/test_audit.py",
    "tests/integration/offline/test_training.py",
    "tests/integration/policies",
    "tests/integration/retrievers",
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
    Setting(name="OpenBLAS Nehalem", environment={"OPENBLAS_CORETYPE": "Nehalem"}),
    Setting(name="OpenBLAS Sandybridge", environment={"OPENBLAS_CORETYPE": "Sandybridge"}, needs=("avx",)),
    Setting(name="OpenBLAS Haswell", environment={"OPENBLAS_CORETYPE": "Haswell"}, needs=("avx2",)),
    Setting(name="OpenBLAS SkylakeX", environment={"OPENBLAS_CORETYPE": "SkylakeX"}, needs=("avx512bw",)),
    Setting(name="1 thread", environment={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}),
    Setting(name="2 threads", environment={"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}),
    Setting(name="beside busy loops", busy=True),
)


def processor_flags() -> frozenset[str]:
    """The flags in /proc/cpuinfo; empty if there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    flags = re.search(r"^flags\s*:(.*)$", text, re.M)
    return frozenset(flags[1].split()) if flags else frozenset()


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run that many processes that only compute, until the block ends."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> int:
    """Run the tests under each setting, and print pytest's output. Returns 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.isa_matrix", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="only settings whose names contain one of these words")
    parser.add_argument("files", nargs="*", default=FILES)
    asked, flags, failed = parser.parse_args(), processor_flags(), list[str]()
    for setting in SETTINGS:
        if asked.only and not any(word in setting.name for word in asked.only):
            continue
        if missing := sorted(set(setting.needs) - flags):
            print(f"{setting.name}: skipped, the processor has no {', '.join(missing)}")
            continue
        print(f"{setting.name}:", flush=True)
        environment = {name: value.format(**_numpy_features()) for name, value in setting.environment.items()}
        command = [sys.executable, "-m", "pytest", *asked.files, "-q", "-m", "not slow and not gpu"]
        with busy_loops(os.cpu_count() or 1) if setting.busy else nullcontext():
            if subprocess.run(command, cwd=ROOT, env=os.environ | environment).returncode:
                failed.append(setting.name)
    print(f"failed: {', '.join(failed) or 'none'}; {machine()}")
    return int(bool(failed))


def _numpy_features() -> dict[str, str]:
    """The features that numpy uses beyond its baseline and this processor has: all of them, and AVX512's part."""
    core = importlib.import_module("numpy._core._multiarray_umath")
    names = [name for name in core.__cpu_dispatch__ if core.__cpu_features__[name]]
    return {"all": " ".join(names), "avx512": " ".join(name for name in names if "512" in name or name == "X86_V4")}


if __name__ == "__main__":
    sys.exit(main())

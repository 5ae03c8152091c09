"""A process whose numpy and BLAS run as on an older processor."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def printed_with_other_loops(code: str) -> str:
    """What this program prints with AVX2 and AVX512 switched off, and BLAS's loops for an old processor."""
    environment = os.environ | {"OPENBLAS_CORETYPE": "Nehalem", "OPENBLAS_NUM_THREADS": "1"}
    environment |= {"NPY_DISABLE_CPU_FEATURES": " ".join(_switched_off())}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    return run.stdout


def _switched_off() -> list[str]:
    """What numpy was built to use beyond its baseline and this CPU has."""
    from numpy._core import _multiarray_umath as core

    return [name for name in core.__cpu_dispatch__ if core.__cpu_features__[name]]

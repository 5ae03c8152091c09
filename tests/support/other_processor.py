"""A process that computes as on another processor. It runs functions of tests on data that the tests made here.

Libraries choose their loops by what the processor has, and loops that sum in another order give other last bits. The
process holds back OpenBLAS, numpy, MKL, torch, oneDNN and the C library; a test fails unless its bits are others.

`python -m tests.support.other_processor --environment` prints the environment of an old processor, for `env`.
"""

import contextlib
import hashlib
import importlib
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.support.shared_record import shared_record

ROOT: Final = Path(__file__).parents[2]
#: a call that takes longer fails, before its test does
LIMIT_S: Final = 100.0
#: the same for imports
START_S: Final = 240.0
#: the process ends this long after the last process of tests has left it
IDLE_S: Final = 2.0
#: processors whose kernels OpenBLAS may use, tried until the bits are others; "" is this one. The last two are ARM's
KERNELS: Final = ("Nehalem", "", "Prescott", "Haswell", "ARMV8", "NEOVERSEN1")


def old_processor(kernels: str = KERNELS[0]) -> dict[str, str]:
    """Environment in which the libraries use no instruction that is newer than SSE4.

    kernels: the processor whose kernels OpenBLAS uses
    """
    from numpy._core import _multiarray_umath as core

    disabled = os.environ.get("NPY_DISABLE_CPU_FEATURES", "").replace(",", " ").split()
    groups = [name for name in core.__cpu_dispatch__ if core.__cpu_features__[name] or name in disabled]
    return {
        "OPENBLAS_CORETYPE": kernels,
        "NPY_DISABLE_CPU_FEATURES": ",".join(groups),
        "MKL_CBWR": "COMPATIBLE",
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-AVX512F,-FMA,-FMA4",
    }


def numpy_bits() -> str:
    """Identifies the bits of products and of a factor that BLAS and LAPACK compute. Too small for several threads."""
    random = np.random.default_rng(7)
    left, right = random.standard_normal((40, 150)), random.standard_normal((150, 40))
    square = left @ left.T + np.eye(40)
    results = (left @ right, left @ right[:, 0], square, np.linalg.cholesky(square))
    return hashlib.sha256(b"".join(array.tobytes() for array in results)).hexdigest()


def torch_bits() -> str:
    """Identifies the bits of a layer of torch in float32. Too small for several threads."""
    import torch

    random = np.random.default_rng(7)
    rows, weights = (torch.from_numpy(random.standard_normal((40, 150)).astype(np.float32)) for _ in range(2))
    layer = torch.nn.functional.gelu(torch.nn.functional.linear(rows, weights))
    return hashlib.sha256(layer.softmax(dim=-1).numpy().tobytes()).hexdigest()


class OtherProcessor:
    """A connection to the process, which forks for each connection.

    modules: what the process imports before it forks, once for all connections
    """

    def __init__(self, address: str, *, modules: Sequence[str] = ("ragbandit.workers.cli", "tests.conftest")) -> None:
        self.address = address
        self._connection = Client(address, "AF_UNIX")
        self._ask(import_all, *modules, limit_s=START_S)

    def call(self, function: Callable[..., Any], /, *arguments: Any) -> Any:
        """Run a module's function on the other processor. Arguments and result are pickled."""
        return self._ask(function, *arguments, limit_s=LIMIT_S)

    def _ask(self, function: Callable[..., Any], *arguments: Any, limit_s: float) -> Any:
        name = f"{function.__module__}.{function.__qualname__}{arguments}"
        self._connection.send_bytes(pickle.dumps((function, arguments)))
        if not self._connection.poll(limit_s):
            self.close()
            pytest.fail(f"{name}: no reply of the other processor within {limit_s:g} s")
        try:
            is_done, result = pickle.loads(self._connection.recv_bytes())
        except EOFError:
            pytest.fail(f"{name}: the other processor ended")
        if not is_done:
            pytest.fail(f"{name} failed on the other processor:\n{result}")
        return result

    def require_other_bits(self, bits: Callable[[], str]) -> None:
        if self.call(bits) == bits():
            pytest.fail(f"{bits.__name__} are the same on the other processor, so its results prove nothing")

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def shared_processor(file: Path, *, kernels: Sequence[str] = KERNELS) -> Iterator[OtherProcessor]:
    """A connection to the process whose address is in this file. The first caller starts it, with kernels of these."""
    with shared_record(file) as record:
        try:
            process = OtherProcessor(record["address"])
        except (KeyError, OSError):  # not started yet, or ended
            record["address"] = _start(kernels)
            process = OtherProcessor(record["address"])
    with contextlib.closing(process):
        process.require_other_bits(numpy_bits)
        yield process


@contextlib.contextmanager
def with_torch(process: OtherProcessor) -> Iterator[OtherProcessor]:
    """Another connection, to a process that has imported torch and the fine-tuned policies."""
    modules = "torch", "transformers.models.distilbert.modeling_distilbert"
    import_all(*modules)  # here, too, or the first test would wait for it
    with contextlib.closing(OtherProcessor(process.address, modules=modules)) as other:
        other.require_other_bits(torch_bits)
        yield other


#: processes that this one started; each ends by itself
_STARTED: Final[list[subprocess.Popen[str]]] = []


def _start(candidates: Sequence[str]) -> str:
    """Address of a process with other bits than this one."""
    tried = list[str]()
    for kernels in candidates:
        folder = tempfile.mkdtemp(prefix="ragbandit-processor-")
        address = str(Path(folder) / "socket")
        started = subprocess.Popen(
            [sys.executable, "-m", __name__, address],
            cwd=ROOT,
            env=_environment(kernels),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        with started.stdout as said:
            bits = said.readline().strip()  # it listens already
        if bits and bits != numpy_bits():
            _STARTED.append(started)
            return address
        started.kill()
        started.wait()
        shutil.rmtree(folder, ignore_errors=True)
        tried.append(f"{kernels or 'as it is'}: {'the same bits' if bits else 'does not run here'}")
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    pytest.fail(f"no kernels of BLAS give other bits than here ({', '.join(tried)}); numpy's BLAS is {blas}")


def _environment(kernels: str) -> dict[str, str]:
    """The environment of the other process: a library that is held back in this process runs there as it is."""
    held = old_processor(kernels)
    chosen = {name: value for name, value in held.items() if value and value != os.environ.get(name)}
    own = {"DATABASE_URL", "REDIS_URL", *held}
    kept = {name: value for name, value in os.environ.items() if name not in own and not name.startswith("RAGBANDIT_")}
    return kept | chosen | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


# ------------------------------------------------------------------------------------------- in the other process


def serve(address: str) -> None:
    """Listen, print the bits of this process, and fork for each connection until nobody is connected any more."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        listener.settimeout(START_S)
        os.chdir(Path(address).parent)  # what a function writes to a relative path is removed with it
        sys.stdout.write(f"{numpy_bits()}\n")
        sys.stdout.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        answering = set[int]()
        while True:
            try:
                accepted, _ = listener.accept()
            except TimeoutError:
                answering = {child for child in answering if not os.waitpid(child, os.WNOHANG)[0]}
                if not answering:
                    break
                continue
            listener.settimeout(IDLE_S)
            with contextlib.suppress(EOFError):  # the other end left at once
                answering.add(_fork(Connection(accepted.detach())))
    shutil.rmtree(Path(address).parent)


def import_all(*modules: str) -> None:
    for module in modules:
        importlib.import_module(module)


def _fork(connection: Connection) -> int:
    """A process that answers this connection. The first request, for imports, is answered before the fork."""
    with connection:
        reply = _reply_to(connection.recv_bytes())
        if child := os.fork():
            return child
        with contextlib.suppress(EOFError, OSError):
            while True:
                connection.send_bytes(reply)
                reply = _reply_to(connection.recv_bytes())
        os._exit(0)


def _reply_to(request: bytes) -> bytes:
    try:
        function, arguments = pickle.loads(request)
        return pickle.dumps((True, function(*arguments)))
    except BaseException:
        return pickle.dumps((False, traceback.format_exc()))


if __name__ == "__main__":
    if sys.argv[1] == "--environment":
        sys.stdout.write(" ".join(f"{name}={value}" for name, value in old_processor().items()) + "\n")
    else:
        serve(sys.argv[1])

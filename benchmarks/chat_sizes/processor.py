"""What a process and its child processes have used: processor time, and instructions under callgrind."""

import re
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

#: options of valgrind: it counts from `Callgrind.switch_on`
CALLGRIND: Final = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--fair-sched=yes")
_TOTAL: Final = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)
#: longest wait for a written count, seconds
_WRITE_S: Final = 60.0


def processor_ms(process: int) -> float:
    """Milliseconds of processor time so far, of ended threads too."""
    total = 0
    for number in _tree(process):
        with suppress(OSError):
            total += time.clock_gettime_ns((~number << 3) | 2)  # CPUCLOCK_SCHED of a process, as in the Linux kernel
    return total / 1e6


def _tree(process: int) -> list[int]:
    found = [process]
    for number in found:  # grows by the children
        for task in Path(f"/proc/{number}/task").glob("*"):
            with suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


class Callgrind:
    """Counts the instructions of a process that was started with `command`."""

    def __init__(self, process: int, *, folder: Path) -> None:
        self._process, self._folder = process, folder

    @staticmethod
    def is_installed() -> bool:
        """Whether this machine has valgrind."""
        return shutil.which("valgrind") is not None

    @staticmethod
    def command(folder: Path) -> tuple[str, ...]:
        """The words before a command whose instructions are counted."""
        return (*CALLGRIND, f"--callgrind-out-file={folder}/callgrind.%p")

    def switch_on(self) -> None:
        """Count from here. The process is slow until its code has been translated again."""
        self._control("-i", "on")

    def counted(self) -> float:
        """Millions of instructions since the last call, of all threads."""
        before = set(self._folder.glob("callgrind.*"))
        self._control("-d")
        give_up = time.monotonic() + _WRITE_S
        while time.monotonic() < give_up:
            for file in set(self._folder.glob("callgrind.*")) - before:
                total = _TOTAL.search(file.read_text(errors="replace"))
                if total is not None:
                    return int(total[1]) / 1e6
            time.sleep(0.1)
        raise RuntimeError(f"callgrind wrote no counts to {self._folder}")

    def _control(self, *arguments: str) -> None:
        subprocess.run(["callgrind_control", *arguments, str(self._process)], check=True, capture_output=True)

"""Learning from the first day: what context, a safe start and a judge are worth, each beside its baselines.

python -m benchmarks.learning               # all tables; about LENGTH on two idle cores
python -m benchmarks.learning context simulation
"""

import importlib
import sys
from typing import Final

PARTS: Final = ("context", "simulation")


def main(arguments: list[str]) -> None:
    """Print the tables of these parts, of all where none is named."""
    unknown = sorted(set(arguments) - set(PARTS))
    if unknown:
        raise SystemExit(f"unknown part {unknown[0]!r}; known: {', '.join(PARTS)}")
    for part in arguments or PARTS:
        importlib.import_module(f"benchmarks.learning.{part}").main()


if __name__ == "__main__":
    main(sys.argv[1:])

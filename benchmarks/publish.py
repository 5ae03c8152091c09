"""`make bench-readme`: run the benchmarks and put what they print between the README's bench marks, as printed."""

import re
import subprocess
import sys
from pathlib import Path

__all__ = ["put"]

README = Path(__file__).parents[1] / "README.md"


def main() -> None:
    """Replace the block."""
    printed = subprocess.run([sys.executable, "-m", "benchmarks"], check=True, capture_output=True, text=True).stdout
    put("bench", printed)


def put(name: str, printed: str, *, readme: Path = README) -> None:
    """Replace what stands between the marks `<name>:begin` and `<name>:end` by what was printed.

    Raises SystemExit where the marks are missing.
    """
    text = readme.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    lines = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())
    block = f"{begin}\n```text\n{lines}\n```\n{end}"
    text, count = re.subn(f"{re.escape(begin)}.*{re.escape(end)}", lambda _: block, text, flags=re.S)
    if count != 1:
        raise SystemExit(f"{readme} has the marks of {name!r} {count} times")
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""`make bench-readme`: run the benchmarks and put what they print between the README's bench marks, as printed."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def main() -> None:
    """Replace the block."""
    printed = subprocess.run([sys.executable, "-m", "benchmarks"], check=True, capture_output=True, text=True).stdout
    block = f"<!-- bench:begin -->\n```text\n{printed.strip()}\n```\n<!-- bench:end -->"
    text = README.read_text(encoding="utf-8")
    README.write_text(
        re.sub(r"<!-- bench:begin -->.*<!-- bench:end -->", lambda _: block, text, flags=re.S), encoding="utf-8"
    )


if __name__ == "__main__":
    main()

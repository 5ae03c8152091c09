"""`python -m tests.without NAME [arguments of pytest]`: the tests of a copy of the tree that lacks an addition.

NAME is an addition; or "turn", the addition whose turn it is with the present commit; or "all", which leaves the core.

The copy lies in build/without/NAME. It lacks the folder, the tests and the pages of the addition, and of all that need
it. Its generated pages are written again.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from ragbandit.shared.additions import additions

ROOT = Path(__file__).parents[1]


def whose_turn() -> str:
    """Name of the addition whose turn it is with this commit; outside a clone, the first name."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = sorted(additions())
    return names[int(asked.stdout.strip() or "0", 16) % len(names)]


def gone_with(name: str) -> set[str]:
    """Names of the addition and of the additions that need it, directly or through others. "all": of all additions."""
    gone = {*additions()} if name == "all" else {name}
    while more := {one for one, what in additions().items() if one not in gone and what.needs & gone}:
        gone |= more
    return gone


def copy_without(name: str) -> Path:
    """Make the copy. Returns its folder."""
    copy = ROOT / "build" / "without" / name
    shutil.rmtree(copy, ignore_errors=True)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    left_out = tuple(f"{part}/{one}/" for one in gone_with(name) for part in ("ragbandit/additions", "tests/additions"))
    pages = {f"docs/{page}" for one in gone_with(name) for page in additions()[one].pages}
    written = "ragbandit/client/client.py"  # git ignores it
    for file in filter(None, [*files, written]):
        source = ROOT / file
        if file.startswith(left_out) or file in pages or not (source.exists() or source.is_symlink()):
            continue
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy / file, follow_symlinks=False)
    # The generated pages name what is installed.
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    subprocess.run([sys.executable, "-m", "docs.generate"], cwd=copy, env=environment, check=True, capture_output=True)
    return copy


def main() -> int:
    name, *options = sys.argv[1:] or [""]
    name = whose_turn() if name == "turn" else name
    if name != "all" and name not in additions():
        print(f"there is no addition {name!r}; known: {', '.join([*additions(), 'all', 'turn'])}")
        return 2
    copy = copy_without(name)
    print(f"without {', '.join(sorted(gone_with(name)))}: {copy}", flush=True)
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    command = [sys.executable, "-m", "pytest", *(options or ["tests"])]
    return subprocess.run(command, cwd=copy, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

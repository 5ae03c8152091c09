"""Small files with a large content: what a process that reads one has of memory."""

import subprocess
import sys
from pathlib import Path

#: most memory of a process that reads a bomb, in MB; an empty one takes about 20 MB
MOST = 400
_READ = r"""
import re, sys
from pathlib import Path
from ragbandit.shared.errors import InvalidInput
{imports}
path = Path(sys.argv[1])
try:
    print({read})
except InvalidInput as error:
    print(error.message)
# `ru_maxrss` would begin with the memory of the process that forked this one.
print(int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""


def read_bomb(path: Path, *, imports: str, read: str) -> tuple[str, int]:
    """Returns (what the expression `read` of a `path` gives, or why it is refused; most memory of the process, MB)."""
    code = _READ.format(imports=imports, read=read)
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True, timeout=300)
    *said, peak = done.stdout.splitlines()
    return "\n".join(said), int(peak)

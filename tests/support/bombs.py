"""Small files with a large content: how much memory a process needs to read one."""

import subprocess
import sys
from pathlib import Path

#: most memory that reading a bomb adds to a process, in MB. Imports take 20 to 150 MB before it
MOST = 400
_READ = r"""
import re, sys
from pathlib import Path
from ragbandit.shared.errors import InvalidInput
{imports}

def peak():
    # `ru_maxrss` would begin with the memory of the process that forked this one.
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) // 1024

path, before = Path(sys.argv[1]), peak()
try:
    print({read})
except InvalidInput as error:
    print(error.message)
print(peak() - before)
"""


def read_bomb(path: Path, *, imports: str, read: str) -> tuple[str, int]:
    """Returns (what the expression `read` of a `path` gives, or why it is refused; most memory that it adds, MB)."""
    code = _READ.format(imports=imports, read=read)
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True, timeout=300)
    *said, peak = done.stdout.splitlines()
    return "\n".join(said), int(peak)

"""Small files with a large content: what a process that reads one has of memory."""

import subprocess
import sys
from pathlib import Path

#: most memory of a process that reads a bomb, in MB; an empty one takes about 20 MB
MOST = 400
_READ = """
import resource, sys
from pathlib import Path
from ragbandit.shared.errors import InvalidInput
{imports}
path = Path(sys.argv[1])
try:
    print({read})
except InvalidInput as error:
    print(error.message)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(peak // (1 << 20 if sys.platform == "darwin" else 1 << 10))
"""


def read_bomb(path: Path, *, imports: str, read: str) -> tuple[str, int]:
    """Returns (what the expression `read` of a `path` gives, or why it is refused; most memory of the process, MB)."""
    code = _READ.format(imports=imports, read=read)
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True, timeout=300)
    *said, peak = done.stdout.splitlines()
    return "\n".join(said), int(peak)

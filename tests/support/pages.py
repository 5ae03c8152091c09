"""Code of the documentation, as modules that tests import."""

import importlib
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def module_of(page, name, *, folder):
    """The Python block after the first mention of `NAME.py` on a page, imported from a folder that is on sys.path."""
    text = (DOCS / page).read_text(encoding="utf-8").partition(f"`{name}.py`")[2]
    code = re.search(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (Path(folder) / f"{name}.py").write_text(code[1], encoding="utf-8")
    return importlib.import_module(name)

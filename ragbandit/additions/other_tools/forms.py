"""Names and patterns of other tools, from forms.toml."""

import tomllib
from pathlib import Path
from typing import Any, Final

FORMS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("forms.toml").read_text("utf-8"))

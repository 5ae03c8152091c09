"""Keys of other systems, from environment variables, and the names of the places that they open."""

import os
from hashlib import sha256
from urllib.parse import urlsplit

from ragbandit.router.errors import ConfigError

__all__ = ["place_of", "secret"]


def secret(variable: str, importer: str) -> str:
    """The value of an environment variable, fit for a header. Raises ConfigError, which does not show it."""
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ConfigError(
            f"the environment variable {variable} is not set",
            field=f"importers.{importer}",
            remedy=f"put the key of {importer} there, or name another variable",
        )
    if not (value.isascii() and value.isprintable()) or len(value) > 4096:
        raise ConfigError(
            f"the environment variable {variable} holds what no header can carry",
            field=f"importers.{importer}",
            remedy="set it again without line breaks",
        )
    return value


def place_of(url: str, *, also: str = "") -> str:
    """Host, port and path of an address, and a few digits that tell `also` from others."""
    parts = urlsplit(url)
    digits = f"#{sha256(also.encode()).hexdigest()[:8]}" if also else ""
    return f"{parts.netloc}{parts.path}"[:90] + digits

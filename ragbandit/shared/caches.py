"""The folder of caches, and arrays that are computed once."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragbandit.shared.files import temporary_folder, write_file

if TYPE_CHECKING:
    import numpy.typing as npt

log = logging.getLogger("ragbandit.cache")


def cache_root(cache: Path | None = None) -> Path:
    """The folder of caches: `cache`, by default `$XDG_CACHE_HOME/ragbandit` or `~/.cache/ragbandit`. Without a writable
    home, as in a pod, it is a folder of this user among the temporary files.
    """
    given = cache or os.environ.get("XDG_CACHE_HOME")
    root = os.path.join(given or os.path.expanduser("~/.cache"), "ragbandit")
    nearest = next(filter(os.path.exists, map(str, Path(root).parents)))
    has_home = given or os.path.exists(root) or (not root.startswith("~") and os.access(nearest, os.W_OK))
    return (cache or Path(root)) if has_home else Path(temporary_folder()) / f"ragbandit-{os.getuid()}"


def cached_arrays(
    kind: str, key: str, *, build: "Callable[[], dict[str, npt.NDArray[Any]]]", cache: Path | None = None
) -> "dict[str, npt.NDArray[Any]]":
    """Load arrays from a cache file, or build and cache them if the file is missing or damaged.

    kind: subfolder of the cache
    key: its first 32 characters name the file, and must identify everything that the arrays depend on
    cache: root folder, see `cache_root`
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file, save

    file = cache_root(cache) / kind / f"{key[:32]}.safetensors"
    try:
        return dict(load_file(file))
    except (OSError, SafetensorError):
        arrays = build()
    try:
        write_file(file, save(arrays), durable=False)
    except OSError as error:
        log.warning("the cache file %s cannot be written, so the next start computes its arrays again: %s", file, error)
    return arrays

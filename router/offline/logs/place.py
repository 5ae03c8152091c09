"""Where a log lies, and in which format: local paths, or the URL of Parquet files that fsspec reads (s3://, file://)."""

import glob
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ragbandit.shared.errors import ConfigError, InvalidInput, required_module
from ragbandit.shared.redaction import without_secrets

#: a Path; or a str, which is a URL
Place = Path | str

_SUFFIX: Final = ".parquet"


def place_of(text: str | Path) -> Place:
    """A URL as it is, anything else as a Path."""
    return text if isinstance(text, str) and "://" in text else Path(text)


def is_remote(place: Place) -> bool:
    """Whether fsspec must read it."""
    return isinstance(place, str)


def shown(place: Place) -> str:
    """The place for messages and reports, without secrets."""
    return without_secrets(place) if isinstance(place, str) else str(place)


def file_system(place: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it. Raises InvalidInput, and ConfigError where a package is missing."""
    fsspec = required_module("fsspec", extra="replay", field="log")  # only a remote log needs it
    try:
        system, path = fsspec.core.url_to_fs(place)
    except ImportError as error:
        scheme = place.partition("://")[0]
        remedy = f"install it: {error}" if str(error) else f"install the package of fsspec for {scheme}"
        raise ConfigError(f"a package that reads {scheme}:// is missing", field="log", remedy=remedy) from error
    except ValueError as error:
        remedy = "give a path, or a URL that fsspec knows, as s3://bucket/folder"
        raise InvalidInput(without_secrets(str(error)), field="log", remedy=remedy) from error
    return system, path


def check_shared(places: Sequence[Place]) -> None:
    """Raises InvalidInput for files that other processes cannot read: those of fsspec in the memory of this one."""
    own = next((place for place in places if isinstance(place, str) and place.startswith("memory://")), None)
    if own is not None:
        raise InvalidInput(
            f"{own} is in the memory of this process: no worker can read it",
            field="log",
            remedy="put the files where every worker reads them, or leave out --workers and --cluster",
        )


def is_several(place: Place) -> bool:
    """Whether it is a folder, or a pattern with *. Raises InvalidInput where that cannot be found out."""
    if "*" in str(place):
        return True
    if isinstance(place, Path):
        return place.is_dir()
    system, path = file_system(place)
    with _listing(place):
        return bool(system.isdir(path))


def files_of(place: Place) -> list[Place]:
    """The Parquet files below a folder, or the files of a pattern, by name. Raises InvalidInput as `is_several`."""
    if isinstance(place, Path):
        folder = place.is_dir()
        return sorted(place.rglob(f"*{_SUFFIX}") if folder else map(Path, glob.glob(str(place), recursive=True)))
    system, path = file_system(place)
    with _listing(place):
        names = system.glob(path) if "*" in place else [name for name in system.find(path) if name.endswith(_SUFFIX)]
    return [system.unstrip_protocol(name) for name in sorted(names)]


@contextmanager
def _listing(place: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # each file system raises errors of its own
        message = without_secrets(f"{type(error).__name__}: {error}")
        raise InvalidInput(
            f"cannot be listed: {message}", field=shown(place), remedy="check the URL and this user's rights"
        ) from error

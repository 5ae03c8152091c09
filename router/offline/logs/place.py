"""Place of a log file: a local path, or the URL of a Parquet file that fsspec reads (s3://, gs://, file://)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ragbandit.router.errors import ConfigError, InvalidInput
from ragbandit.router.redaction import without_secrets

__all__ = ["Place", "check_shared", "file_system", "files_of", "is_remote", "place_of", "shown"]

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
    import fsspec  # only a remote log needs it

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


def files_of(place: str) -> list[Place] | None:
    """The Parquet files below the folder of a URL, or of a pattern with *; None for the URL of one file.

    Raises InvalidInput where it cannot be read.
    """
    system, path = file_system(place)
    try:
        if "*" in place:
            found = system.glob(path)
        elif system.isdir(path):
            found = [name for name in system.find(path) if name.endswith(_SUFFIX)]
        else:
            return None
    except Exception as error:  # each file system raises errors of its own
        said = without_secrets(f"{type(error).__name__}: {error}")
        raise InvalidInput(
            f"cannot be listed: {said}", field=shown(place), remedy="check the URL and this user's rights"
        ) from error
    return [system.unstrip_protocol(name) for name in sorted(found)]

"""Folder: named files in a local folder or under an fsspec URL (s3://, gs://, memory://), read and written whole."""

import importlib.util
from pathlib import Path
from typing import Any

from ragbandit.shared.errors import ConfigError, required_module
from ragbandit.shared.files.atomic import write_file


def check_root(root: str, *, field: str) -> None:
    """Refuse a URL of a file system that fsspec does not know, or whose package is not installed. Raises ConfigError.

    The package is not imported, and nobody is asked.
    """
    if "://" not in root:
        return
    registry = required_module("fsspec.registry", extra="replay", field=field)
    scheme = root.partition("://")[0]
    known = registry.known_implementations.get(scheme)
    if known is None:
        raise _unusable(scheme, field=field)
    package = known["class"].partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise _unusable(scheme, field=field, package=package)


def remote_system(root: str, *, field: str | None = None) -> tuple[Any, str]:
    """The file system of a URL, and the path in it. Raises ConfigError as `check_root`."""
    fsspec = required_module("fsspec", extra="replay", field=field)  # only a remote root needs it
    try:
        system, path = fsspec.core.url_to_fs(root)
    except (ImportError, ValueError) as error:
        if field is not None:
            check_root(root, field=field)
        raise _unusable(root.partition("://")[0], field=field) from error
    return system, path


def _unusable(scheme: str, *, field: str | None, package: str | None = None) -> ConfigError:
    if package is None:
        remedy = "give a path, or a URL that fsspec knows, as s3://bucket/folder, with its package installed"
        return ConfigError(f"{scheme}:// cannot be used here", field=field, remedy=remedy)
    remedy = f"pip install {package}; for an image of ours: docker build --build-arg MORE_PACKAGES={package}"
    return ConfigError(f"the package {package}, which reads {scheme}://, is missing", field=field, remedy=remedy)


class Folder:
    """Files by name, `a/b.parquet` for one in a folder below. Methods raise OSError, and ConfigError as `check_root`.

    field: the setting that the root comes from, for messages.
    """

    def __init__(self, root: str, *, field: str | None = None) -> None:
        self.root = root
        self._field = field
        self._remote = "://" in root

    def put(self, name: str, data: bytes) -> None:
        """Write a file; a reader sees all of it or none, and it is durable when this returns."""
        if self._remote:
            system, path = self._system(name)
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
            system.pipe_file(path, data)  # object stores show a file when it is whole
        else:
            write_file(Path(self.root, name), data, durable=True)

    def get(self, name: str) -> bytes:
        """The whole file."""
        if self._remote:
            system, path = self._system(name)
            return bytes(system.cat_file(path))
        return Path(self.root, name).read_bytes()

    def exists(self, name: str) -> bool:
        """Whether the file is there."""
        if self._remote:
            system, path = self._system(name)
            return bool(system.exists(path))
        return Path(self.root, name).is_file()

    def fingerprint(self, name: str) -> str:
        """Another text after the file was written again, by whomever. Reads no content; OSError if it is missing."""
        if self._remote:
            system, path = self._system(name)
            system.invalidate_cache(path.rpartition("/")[0])
            return str(system.ukey(path))
        status = Path(self.root, name).stat()
        return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"

    def names(self, folder: str) -> list[str]:
        """The files in a folder below, by name within this one; [] where there is no such folder."""
        if self._remote:
            system, path = self._system(folder)
            paths = system.ls(path, detail=False) if system.exists(path) else []
            return sorted(f"{folder}/{name.rstrip('/').rpartition('/')[2]}" for name in paths)
        below = Path(self.root, folder)
        return sorted(f"{folder}/{file.name}" for file in below.iterdir()) if below.is_dir() else []

    def remove(self, name: str) -> None:
        """Delete a file; one that is not there is fine."""
        if self._remote:
            system, path = self._system(name)
            if system.exists(path):
                system.rm_file(path)
        else:
            Path(self.root, name).unlink(missing_ok=True)

    def _system(self, name: str) -> tuple[Any, str]:
        system, path = remote_system(self.root, field=self._field)
        return system, f"{path}/{name}"

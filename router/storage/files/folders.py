"""Folder: named files in a local folder or under an fsspec URL (s3://, gs://, memory://), read and written whole."""

from pathlib import Path
from typing import Any

from ragbandit.router.storage.files.atomic import write_file

__all__ = ["Folder"]


class Folder:
    """Files by name, `a/b.parquet` for one in a folder below. Methods raise OSError."""

    def __init__(self, root: str) -> None:
        self.root = root
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
        found = Path(self.root, name).stat()
        return f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"

    def names(self, folder: str) -> list[str]:
        """The files in a folder below, by name within this one; [] where there is no such folder."""
        if self._remote:
            system, path = self._system(folder)
            found = system.ls(path, detail=False) if system.exists(path) else []
            return sorted(f"{folder}/{name.rstrip('/').rpartition('/')[2]}" for name in found)
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
        import fsspec  # only a remote root needs it

        system, path = fsspec.core.url_to_fs(self.root)
        return system, f"{path}/{name}"

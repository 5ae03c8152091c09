"""Tar files of ours, unpacked on every Python that the package supports."""

import tarfile
from pathlib import Path


def unpack(file: Path, folder: Path) -> None:
    """Unpack a tar file that we have made ourselves."""
    with tarfile.open(file) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:  # Python 3.11 before 3.11.4
            archive.extractall(folder)

"""Models in folders: loaded without the progress bars of transformers, which would be drawn over ours, and named."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def without_bar() -> Iterator[None]:
    """No progress bar from transformers inside. Raises ImportError where it is not installed."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def weights_sha256(folder: Path) -> str:
    """Over the folder's safetensors files, in the order of their names."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()

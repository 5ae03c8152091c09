"""The weights of the demo's language model: fetched and converted, once, by a process of its own."""

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import AUTO, HASHING
from ragbandit.router.encoders.weights import DEFAULT_ENCODER, is_at_hand
from ragbandit.workers.setup.loading import check_generators

_LOG: Final = "fetch.log"


def missing_weights(settings: Settings) -> list[str]:
    """The models whose weights the first run fetches, in words; empty if all weights are on this disk."""
    encoder = DEFAULT_ENCODER if settings.encoder.model == AUTO else settings.encoder.model
    wanted = {"the encoder": None if encoder == HASHING else encoder}
    wanted |= {"a small language model": settings.generator.model if settings.generator.name == "local" else None}
    return [words for words, model in wanted.items() if model is not None and not is_at_hand(model)]


@contextlib.contextmanager
def fetching(environment: dict[str, str], *, data: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """Fetch the weights of the generators in the background. If this fails, the service tries again and reports it."""
    data.mkdir(parents=True, exist_ok=True)
    with (data / _LOG).open("wb") as output:
        command = [sys.executable, "-m", __name__]
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    check_generators(load(environ=os.environ).settings, fetch=True)

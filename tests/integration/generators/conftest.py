"""The real small model, loaded once for all files that a process runs, and let go after the last one."""

import pytest

from tests.support.model_memory import release


@pytest.fixture(scope="session")
def folder():
    """Where its weights lie."""
    from ragbandit.router.encoders.weights import DEFAULT_GENERATOR, resolve

    return resolve(DEFAULT_GENERATOR).folder


@pytest.fixture(scope="module", autouse=True)
def no_model_outlives_its_file():
    """The memory of a file's models is free for those of the next."""
    yield
    release()

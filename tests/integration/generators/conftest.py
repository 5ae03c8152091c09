"""The real small model, loaded once for all files that a process runs, and let go after the last one."""

import asyncio

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


@pytest.fixture(scope="package")
def generator(folder):
    """In float32, because its texts are the same on every processor; bfloat16 has tests of its own.

    One thread: on a busy machine OpenMP threads wait for each other far longer than they compute.
    """
    from ragbandit.strategies.generators.local import LocalGenerator

    made = LocalGenerator(folder, device="cpu", precision="float32", threads=1)
    yield made
    asyncio.run(made.close())
    del made
    release()

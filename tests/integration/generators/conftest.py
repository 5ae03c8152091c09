"""The real small model, loaded once for all files that a process runs."""

import pytest


@pytest.fixture(scope="session")
def folder():
    """Where its weights lie."""
    from ragbandit.router.encoders.weights import DEFAULT_GENERATOR, resolve

    return resolve(DEFAULT_GENERATOR).folder


@pytest.fixture(scope="session")
def generator(folder):
    """In float32, because its texts are the same on every processor; bfloat16 has tests of its own.

    One thread: on a busy machine OpenMP threads wait for each other far longer than they compute.
    """
    from ragbandit.strategies.generators.local import LocalGenerator

    return LocalGenerator(folder, device="cpu", precision="float32", threads=1)

"""The real small model, loaded once for all files that a process runs, and let go after the last one."""

import asyncio

import pytest

from ragbandit.additions.local_models.generator import LocalGenerator
from tests.integration.generators.conftest import folder, no_model_outlives_its_file
from tests.support.model_memory import release

__all__ = ["folder", "no_model_outlives_its_file"]


@pytest.fixture(scope="package")
def generator(folder):
    """In float32, because its texts are the same on every processor; bfloat16 has tests of its own.

    One thread: on a busy machine OpenMP threads wait for each other far longer than they compute.
    """
    made = LocalGenerator(folder, device="cpu", precision="float32", threads=1)
    yield made
    asyncio.run(made.close())
    del made
    release()

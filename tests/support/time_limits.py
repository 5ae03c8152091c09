"""Time limits of fixtures: what loads a model or starts a server does not count in one test's limit, and ends, too."""

import contextlib
from collections.abc import Generator, Iterator
from typing import Final

import pytest
import pytest_timeout

#: limit of all fixtures of a test together, in seconds; a larger limit of the test is theirs, too
FIXTURES_S: Final = 300.0


@contextlib.contextmanager
def _limited(item: pytest.Item) -> Iterator[None]:
    settings = pytest_timeout.get_env_settings(item.config)
    marker = item.get_closest_marker("timeout")
    longest = max([FIXTURES_S, *(marker.args if marker else ())])
    if settings.timeout:  # --timeout=0 sets no limit
        item.ihook.pytest_timeout_set_timer(item=item, settings=settings._replace(timeout=longest))
    try:
        yield
    finally:
        item.ihook.pytest_timeout_cancel_timer(item=item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    with _limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    with _limited(item):
        return (yield)

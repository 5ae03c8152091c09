"""What tests of the store share."""

import pytest

from ragbandit.router.storage.sql.database import Database


@pytest.fixture
def empty(empty_database_url):
    opened = Database(empty_database_url)
    yield opened
    opened.close()

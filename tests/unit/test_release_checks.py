"""What `make release-check` looks at, as far as it is quick."""

from pathlib import Path

import pytest

import ragbandit
from tests.release.changelog import fault_of
from tests.release.licences import EXCEPTIONS, allowed, dependencies, refused

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("# C\n\n## Unreleased\n\n## 1.0.0\n\n- new\n", None),
        ("# C\n\n## 1.0.0 (2026-11-21)\n\n- new\n", None),
        ("# C\n\n## Unreleased\n\n- more\n\n## 1.0.0\n\n- new\n", "Unreleased"),
        ("# C\n\n## 0.9.0\n\n- new\n", "0.9.0"),
        ("# C\n\n## 1.0.0\n\n## 0.9.0\n\n- new\n", "nothing of 1.0.0"),
        ("# C\n", "none"),
    ],
)
def test_the_changelog_has_the_version(text, fault):
    """The newest heading is the version, it says something, and nothing stands under Unreleased."""
    found = fault_of(text, version="1.0.0")
    assert found is None if fault is None else fault in found


def test_our_own_changelog_can_be_read():
    """The only fault of this tree are its unreleased changes."""
    found = fault_of((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version=ragbandit.__version__)
    assert found is None or "Unreleased" in found


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        ("MIT", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("BSD-3-Clause AND MIT", True),
        ("BSD License AND GNU General Public License v3 (GPLv3)", False),
        ("GPL-3.0-only", False),
        ("", False),
    ],
)
def test_licences_that_may_come_along(licence, expected):
    """One of several alternative licences must be allowed, and all of combined ones; a missing licence is a fault."""
    assert allowed(licence) is expected


def test_every_dependency_has_a_licence_of_the_list():
    """No package that an installation brings has a licence that is not on the list; every exception is needed."""
    found = dependencies()
    assert {"numpy", "sqlalchemy", "click"} <= found
    assert refused(found) == {}
    assert set(EXCEPTIONS) <= found | {"psycopg-binary"}

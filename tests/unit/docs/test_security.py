"""docs/security.md: its tables list the rules that the endpoints declare."""

import re
from pathlib import Path

from ragbandit.router.api.app import ENDPOINTS
from ragbandit.router.storage.access.api_keys import ROLES

PAGE = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")


def test_the_table_of_endpoints_is_what_they_declare():
    """The page lists every endpoint with its roles."""
    rows = re.findall(r"^\| `((?:GET|POST|PUT|DELETE|PATCH) [^`]+)` \| (.+) \|$", PAGE, re.MULTILINE)
    table = {
        endpoint: None if roles.startswith("everybody") else {"admin", *re.findall(r"`(\w+)`", roles)}
        for endpoint, roles in rows
    }
    assert table == {f"{endpoint.method} {endpoint.path}": endpoint.rule.roles for endpoint in ENDPOINTS}


def test_every_role_is_described():
    """The table of roles has a line for each of them."""
    assert re.findall(r"^\| `(\w+)` \| [a-z]", PAGE, re.MULTILINE) == list(ROLES)

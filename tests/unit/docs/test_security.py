"""docs/security.md: its tables are what the code does."""

import re
from pathlib import Path

from ragbandit.router.api.security.rules import RULES
from ragbandit.router.storage.access.api_keys import ROLES

PAGE = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")


def test_the_table_of_endpoints_is_that_of_the_code():
    """Every endpoint is there, in the order of the code, with its roles."""
    rows = re.findall(r"^\| `((?:GET|HEAD|OPTIONS|POST|PUT|DELETE|PATCH) [^`]+)` \| (.+) \|$", PAGE, re.MULTILINE)
    said = {
        endpoint: None if roles.startswith("everybody") else {"admin", *re.findall(r"`(\w+)`", roles)}
        for endpoint, roles in rows
    }
    assert said == {endpoint: rule.roles for endpoint, rule in RULES.items()}
    assert list(said) == list(RULES)


def test_every_role_is_described():
    """The table of roles has a line for each of them."""
    assert re.findall(r"^\| `(\w+)` \| [a-z]", PAGE, re.MULTILINE) == list(ROLES)

"""docs/price.md: its examples of prices are valid, and cost what its table says."""

import re
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import yaml

from ragbandit.router.config.settings import Settings
from ragbandit.shared.model_servers.token_usage import Tokens

_PAGE = Path("docs/price.md").read_text().partition("## Prices with conditions")[2].partition("## ")[0]
_ROWS = re.findall(r"^\| (\w+) \| (.+) \| ([\d.]+) \|$", _PAGE, re.MULTILINE)
_SPECIAL = {
    "half of them cached": {"cached": 100_000},
    "6,000 were cached": {"cached": 6000, "cache_write": 3000, "cache_write_hour": 1000, "written": 100},
    "400 are thoughts": {"written": 500, "reasoning": 400},
}


@pytest.mark.parametrize(("name", "call", "dollars"), _ROWS)
def test_a_call_of_the_page_costs_what_it_says(name, call, dollars):
    """The prices of the page's configuration give the dollars of its table."""
    (text,) = re.findall(r"```yaml\n(.*?)```", _PAGE, re.DOTALL)
    generator = Settings.model_validate(yaml.safe_load(text)).generators[name]
    more = next((counts for words, counts in _SPECIAL.items() if words in call), {})
    tokens = Tokens(**{"read": int(call.split()[0].strip(",").replace(",", "")), "written": 1000, **more})
    time, tier = re.search(r"(\d+):(\d+) in Beijing", call), re.search(r"names `(\w+)`", call)
    end = None if time is None else datetime(2026, 11, 30, *map(int, time.groups()), tzinfo=ZoneInfo("Asia/Shanghai"))
    facts = {"tier": "" if tier is None else tier[1], "end": None if end is None else end.timestamp()}
    prices = generator.prices_by_model[generator.model]
    assert tokens.dollars(prices, **facts) == pytest.approx(float(dollars), abs=1e-5)


def test_every_example_has_a_call():
    """The table has a call of each generator of the configuration."""
    assert {name for name, _, _ in _ROWS} == {"long", "tiers", "hours", "cached", "thinking"}

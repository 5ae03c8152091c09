"""docs/alerts.md: every rule of deploy/prometheus/alerts.yaml, with what it means and what to do."""

import re
import textwrap
from pathlib import Path
from typing import Any, Final

import yaml

RULES: Final = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yaml"

_HEAD: Final = """# Alerts

Written by `make docs` from the rules in `deploy/prometheus/alerts.yaml`: what to be woken for, what to look at in the
morning, and for each what it means and what to do. The expressions are PromQL over `/metrics`
([metrics.md](metrics.md)); a board with the same numbers is `deploy/grafana/ragbandit.json`. Limits are a beginning:
what is slow or expensive for you, you know better. `ragbandit status` says most of the same from a shell.

No backup in 26 hours is an alert of the scheduler that takes it: exit code 0 is a whole one
([operations.md](operations.md#backup)).
"""
#: severity -> heading
_HEADINGS: Final = {"critical": "Wake somebody", "warning": "Look at it today"}


def alerts_page() -> str:
    """The page."""
    found = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    rules = [rule for group in found["groups"] for rule in group["rules"]]
    parts = [_HEAD]
    for severity, heading in _HEADINGS.items():
        parts.append(f"## {heading}\n")
        parts += [_described(rule) for rule in rules if rule["labels"]["severity"] == severity]
    return "\n".join(parts)


def _described(rule: dict[str, Any]) -> str:
    notes = rule["annotations"]
    told = " ".join((notes["summary"], notes["meaning"]))
    waited = "" if rule["for"] == "0m" else f" # for {rule['for']}"
    expression = "\n".join(textwrap.wrap(f"{rule['expr']}{waited}", 116, break_long_words=False))
    return (
        f"### {rule['alert']}\n\n{_text(told)}\n\n{_text('**Do:** ' + notes['action'])}\n\n```text\n{expression}\n```\n"
    )


def _text(told: str) -> str:
    """Lines of a page; a label of the alert is named."""
    named = re.sub(r"{{ \$labels\.(\w+) }}", r"`\1`", told)
    return "\n".join(textwrap.wrap(named, 120, break_long_words=False, break_on_hyphens=False))

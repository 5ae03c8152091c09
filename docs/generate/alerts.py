"""docs/alerts.md: every rule of deploy/prometheus/alerts.yaml, with what it means and what to do."""

import re
import textwrap
from pathlib import Path
from typing import Any, Final

import yaml

RULES: Final = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yaml"

_HEAD: Final = """# Alerts

Written by `make docs` from the rules in `deploy/prometheus/alerts.yaml`: what each alert means, what to do, and its
expression (PromQL over [`/metrics`](telemetry.md#metrics)). The thresholds are a starting point: adjust them to what
is slow or expensive for you. `deploy/grafana/ragbandit.json` is a dashboard of the same metrics, and `ragbandit status`
reports most of them in a shell. To detect a missing backup, alert on the exit code of the backup job: 0 means complete
([operations.md](operations.md#backup)).
"""
#: severity -> heading
_HEADINGS: Final = {"critical": "Critical: page the engineer on call", "warning": "Warning: look at it today"}


def alerts_page() -> str:
    """The page."""
    rule_file = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    rules = [rule for group in rule_file["groups"] for rule in group["rules"]]
    parts = [_HEAD]
    for severity, heading in _HEADINGS.items():
        parts.append(f"## {heading}\n")
        parts += [_described(rule) for rule in rules if rule["labels"]["severity"] == severity]
    return "\n".join(parts)


def _described(rule: dict[str, Any]) -> str:
    notes = rule["annotations"]
    waited = "" if rule["for"] == "0m" else f" for {rule['for']}"
    parts = (notes["summary"], notes["meaning"], "**Do:**", notes["action"])
    return (
        f"### {rule['alert']}\n\n{_text(' '.join(parts))}\n\n{_text('**Fires on** `' + rule['expr'] + '`' + waited)}\n"
    )


def _text(text: str) -> str:
    """Lines of a page; a label of the alert is named."""
    named = re.sub(r"{{ \$labels\.(\w+) }}", r"`\1`", text)
    return "\n".join(textwrap.wrap(named, 120, break_long_words=False, break_on_hyphens=False))

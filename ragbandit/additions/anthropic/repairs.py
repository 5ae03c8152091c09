"""Repairs of requests for Messages that newer models refuse."""

import re
from collections.abc import Mapping
from typing import Any, Final

from ragbandit.additions.anthropic.messages.requests import effort_of_budget
from ragbandit.shared.model_servers.request_repairs import RepairedRequest
from ragbandit.shared.reading.fields import object_in

#: texts in messages that refuse a budget of thinking tokens
_BUDGET: Final = re.compile(r"thinking\.type|thinking\.budget_tokens|budget_tokens|adaptive", re.IGNORECASE)


def thinking_by_effort(body: Mapping[str, Any], message: str) -> RepairedRequest | None:
    """The request with adaptive thinking and an effort in place of a budget, for models that take no budget.

    message: a server's reason for a refusal. Returns None if it does not refuse the budget.
    """
    thinking, config = object_in(body, "thinking"), object_in(body, "output_config")
    is_asked = "adaptive" in message.lower() and _BUDGET.search(message)
    if thinking.get("type") != "enabled" or not is_asked:
        return None
    adaptive = {name: value for name, value in thinking.items() if name != "budget_tokens"} | {"type": "adaptive"}
    effort = config.get("effort") or effort_of_budget(thinking.get("budget_tokens")) or "medium"
    changed = {"thinking": adaptive, "output_config": {**config, "effort": effort}}
    return RepairedRequest(body={**body, **changed}, field="thinking.budget_tokens")

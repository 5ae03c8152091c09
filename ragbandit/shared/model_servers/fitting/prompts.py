"""Prompts, as messages of a chat completion, as a kind of server takes them."""

from collections.abc import Mapping
from typing import Any

from ragbandit.shared.model_servers.fitting.contents import fit_contents
from ragbandit.shared.model_servers.fitting.fitted import Fitted
from ragbandit.shared.model_servers.fitting.kinds import Takes
from ragbandit.shared.model_servers.fitting.parameters import fit_parameters
from ragbandit.shared.model_servers.fitting.roles import fit_roles


def fit_prompt(body: Mapping[str, Any], *, takes: Takes) -> dict[str, Any]:
    """The body of a chat completion without tools, schemas and files as this server takes it. The given body stays."""
    whole, fitted = dict(body), Fitted()
    fit_contents(whole, takes=takes, fitted=fitted)
    fit_roles(whole, takes=takes, fitted=fitted)
    fit_parameters(whole, takes=takes, fitted=fitted)
    return whole

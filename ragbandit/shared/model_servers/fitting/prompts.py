"""Fits prompts, which are chat completions without tools, to a kind of server."""

from collections.abc import Mapping
from typing import Any

from ragbandit.shared.model_servers.fitting.contents import fit_contents
from ragbandit.shared.model_servers.fitting.fitted import RequestChanges
from ragbandit.shared.model_servers.fitting.kinds import ServerFeatures
from ragbandit.shared.model_servers.fitting.parameters import fit_parameters
from ragbandit.shared.model_servers.fitting.roles import fit_roles


def fit_prompt(body: Mapping[str, Any], *, server: ServerFeatures) -> dict[str, Any]:
    """A copy of the body of a chat completion without tools, schemas and files, in a form that the server takes."""
    whole, fitted = dict(body), RequestChanges()
    fit_contents(whole, server=server, changes=fitted)
    fit_roles(whole, server=server, changes=fitted)
    fit_parameters(whole, server=server, changes=fitted)
    return whole

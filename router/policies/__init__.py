"""The registry of policies: name -> class, loaded when asked for, since some need heavy packages."""

import inspect
from collections.abc import Mapping
from importlib import import_module

from ragbandit.router.errors import ConfigError
from ragbandit.router.policies.base import Policy
from ragbandit.router.policies.params import is_number, refused
from ragbandit.router.types import Json

__all__ = ["POLICIES", "make_policy"]

#: registry name -> "module:class"
POLICIES: dict[str, str] = {
    "adaptive_rag": "ragbandit.router.policies.finetuned.adaptive_rag:AdaptiveRag",
    "budget": "ragbandit.router.policies.budget:Budget",
    "fixed": "ragbandit.router.policies.fixed:Fixed",
    "lints": "ragbandit.router.policies.linear.thompson:LinTs",
    "linucb": "ragbandit.router.policies.linear.linucb:LinUcb",
    "llm": "ragbandit.router.policies.llm:Llm",
    "mba": "ragbandit.router.policies.linear.mba:MbaRag",
    "mba_paper": "ragbandit.router.policies.finetuned.mba_paper:MbaPaper",
    "mixture": "ragbandit.router.policies.mixture:Mixture",
    "multi_label": "ragbandit.router.policies.finetuned.multi_label:MultiLabel",
    "popularity": "ragbandit.router.policies.popularity:Popularity",
    "softmax": "ragbandit.router.policies.linear.softmax:Softmax",
    "uniform": "ragbandit.router.policies.fixed:Uniform",
    "vw": "ragbandit.router.policies.vw:VowpalWabbit",
}


def make_policy(name: str, *, params: Mapping[str, Json]) -> Policy:
    """A fresh policy that has seen no update.

    Raises ConfigError for a name that is not known, and for a param that is unknown, missing or out of range.
    """
    if name not in POLICIES:
        raise ConfigError(
            f"unknown policy {name!r}", field="policy.name", remedy=f"known: {', '.join(sorted(POLICIES))}"
        )
    module, _, attribute = POLICIES[name].partition(":")
    made = getattr(import_module(module), attribute)
    signature = inspect.signature(made)
    for key in params:
        if key not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            # The value stays out of the message: it may be a key that somebody put in the wrong place.
            raise ConfigError("unknown parameter", field=f"policy.params.{key}", remedy=f"known: {known}")
    for key, parameter in signature.parameters.items():
        if parameter.default is parameter.empty and key not in params:
            raise ConfigError("is needed", field=f"policy.params.{key}", remedy=f"policy {name} cannot guess it")
        if isinstance(parameter.default, float) and key in params and not is_number(params[key]):
            raise refused(key, params[key], wanted="a number", remedy=f"the default is {parameter.default}")
    policy: Policy = made(**params)
    return policy

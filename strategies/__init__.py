"""Ways of answering a question, by name.

    arms = make_arms({"no_retrieval": {}, "single_step": {"passages": 5}}, capabilities=generator.capabilities)

A key is the name of an arm. Its params say how it is made; the param `class` names the class as "package.module:Class",
which is how your own arm comes in, or one of ours under a second name and with other settings:

    {"wide_step": {"class": "ragbandit.strategies.arms.single_step:SingleStep", "passages": 10}}

An installed package brings arms under names of its own, by entry points of the group "ragbandit.strategies".
A class is called with name=<key> and the other params as keywords, and must follow `strategies.base.Strategy`.
"""

import difflib
import inspect
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast, get_args

from ragbandit.router.errors import ConfigError
from ragbandit.router.types import ArmName
from ragbandit.strategies.base import (
    Answer,
    Completion,
    Generator,
    Hit,
    Need,
    OutOfBudget,
    Passage,
    Prompt,
    Request,
    Retriever,
    Strategy,
)
from ragbandit.strategies.entry_points import import_class, installed, load
from ragbandit.strategies.prompting.passages import PassagePool
from ragbandit.strategies.prompting.prompts import ask, parsed_template
from ragbandit.strategies.run import Run
from ragbandit.strategies.runner import run_strategy

if TYPE_CHECKING:
    from ragbandit.strategies.arms.single_step import gather, read

__all__ = [
    "ARMS",
    "Answer",
    "Completion",
    "Generator",
    "Hit",
    "Need",
    "OutOfBudget",
    "Passage",
    "PassagePool",
    "Prompt",
    "Request",
    "Retriever",
    "Run",
    "Strategy",
    "ask",
    "gather",
    "known_arms",
    "make_arms",
    "parsed_template",
    "read",
    "run_strategy",
]

#: parts of our arms that yours may use; they bring pydantic
_LAZY = {"gather": "ragbandit.strategies.arms.single_step", "read": "ragbandit.strategies.arms.single_step"}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'ragbandit.strategies' has no attribute {name!r}")


#: our arms: name -> class; imported when made, so that `import ragbandit.strategies` stays light
ARMS: Mapping[str, str] = MappingProxyType(
    {
        "adaptive_note": "ragbandit.strategies.arms.adaptive_note:AdaptiveNote",
        "chain_of_note": "ragbandit.strategies.arms.notes:ChainOfNote",
        "dragin": "ragbandit.strategies.arms.dragin:Dragin",
        "flare": "ragbandit.strategies.arms.flare:Flare",
        "http": "ragbandit.strategies.arms.http:Http",
        "multi_step": "ragbandit.strategies.arms.multi_step:MultiStep",
        "no_retrieval": "ragbandit.strategies.arms.single_step:NoRetrieval",
        "react": "ragbandit.strategies.arms.react:React",
        "rq_rag": "ragbandit.strategies.arms.rq_rag:RqRag",
        "seakr": "ragbandit.strategies.arms.seakr:Seakr",
        "self_rag": "ragbandit.strategies.arms.self_rag:SelfRag",
        "self_rag_trained": "ragbandit.strategies.arms.self_rag_trained:SelfRagTrained",
        "self_refine": "ragbandit.strategies.arms.notes:SelfRefine",
        "self_rerank": "ragbandit.strategies.arms.notes:SelfRerank",
        "single_step": "ragbandit.strategies.arms.single_step:SingleStep",
    }
)

#: what would meet a need: said to whoever configured an arm that the generator cannot serve
_MET_BY: Mapping[Need, str] = MappingProxyType(
    {
        "completion": "any generator",
        "stop": "any generator of ours, or an OpenAI-compatible server",
        "logprobs": "a local model, or an OpenAI-compatible server that returns them (vLLM, OpenAI), and say so with "
        "generator.openai.logprobs: true",
        "entropy": "a local model",
        "attention": "a local model loaded with eager attention",
        "hidden_states": "a local model",
        "trained_tokens": "a local model trained for this arm, with its tokens named in generator.trained_tokens",
    }
)


def known_arms() -> tuple[str, ...]:
    """The names that need no class: ours and those of installed packages, sorted."""
    return tuple(sorted({*ARMS, *installed()}))


def make_arms(config: Mapping[str, Mapping[str, object]], *, capabilities: frozenset[Need]) -> dict[ArmName, Strategy]:
    """The configured arms, in the order of the configuration; `capabilities` are those of the generator.

    Raises ConfigError, with field "arms", "arms.<name>" or "arms.<name>.<param>", for an empty configuration, an
    unknown arm or param, a value of the wrong type or range, a class that cannot be used, or an unmet need.
    """
    if not config:
        raise ConfigError("no arm is configured", field="arms", remedy=f"known: {', '.join(known_arms())}")
    arms: dict[ArmName, Strategy] = {}
    for name, params in config.items():
        arm = _make(name, params=params)
        _check_needs(arm, name=name, capabilities=capabilities)
        arms[ArmName(name)] = arm
    return arms


def _make(name: str, *, params: Mapping[str, object] | None) -> Strategy:
    if params is not None and not isinstance(params, Mapping):
        raise ConfigError(f"{params!r} is no mapping", field=f"arms.{name}", remedy="give params by name, or {}")
    # An arm without params is written `single_step:` in YAML, which reads as None.
    given = {str(key): value for key, value in (params or {}).items()}
    factory = _class_of(name, path=given.pop("class", None))
    shown = f"{factory.__module__}:{factory.__qualname__}" if hasattr(factory, "__qualname__") else repr(factory)
    try:
        arm = factory(name=name, **given)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{shown} cannot be made with {given!r}: {error}",
            field=f"arms.{name}",
            remedy="it is called with name= and the params as keywords",
        ) from error
    return _checked(arm, name=name, path=shown)


def _class_of(name: str, *, path: object) -> Any:
    """The class that the param names, else the installed one of that name, else ours."""
    if path is not None:
        return import_class(path, where=f"arms.{name}.class")
    factory = load(name, ours=name in ARMS)
    if factory is not None:
        return factory
    if name in ARMS:
        return import_class(ARMS[name], where=f"arms.{name}.class")
    alike = difflib.get_close_matches(name, known_arms())
    meant = f"did you mean {' or '.join(alike)}? " if alike else ""
    raise ConfigError(
        f"{name!r} is not an arm we know",
        field=f"arms.{name}",
        remedy=f'{meant}known: {", ".join(known_arms())}; for your own give class: "package.module:Class"',
    )


def _checked(arm: Any, *, name: str, path: str) -> Strategy:
    faults = [f"has no {each}" for each in ("name", "needs", "params") if not hasattr(arm, each)]
    if not inspect.iscoroutinefunction(getattr(arm, "answer", None)):
        faults.append("has no `async def answer`")
    if not faults and arm.name != name:
        faults.append(f"calls itself {arm.name!r}")
    if faults:
        raise ConfigError(
            f"{path} {', '.join(faults)}", field=f"arms.{name}", remedy="follow ragbandit.strategies.base.Strategy"
        )
    return cast(Strategy, arm)


def _check_needs(arm: Strategy, *, name: str, capabilities: frozenset[Need]) -> None:
    unknown = sorted(set(arm.needs) - set(get_args(Need)))
    if unknown:
        raise ConfigError(
            f"needs {', '.join(unknown)}, unknown words",
            field=f"arms.{name}",
            remedy=f"known: {', '.join(get_args(Need))}",
        )
    unmet = sorted(arm.needs - capabilities)
    if unmet:
        offered = ", ".join(sorted(capabilities)) or "nothing"
        raise ConfigError(
            f"needs {', '.join(unmet)}, and the generator offers {offered}",
            field=f"arms.{name}",
            remedy="; ".join(f"{need}: use {_MET_BY[need]}" for need in unmet) + "; or take the arm out",
        )

"""Draft of a first configuration: choices with their reasons, which are printed and written as comments."""

import contextlib
import importlib.util
import math
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ragbandit.additions.init.model_abilities import abilities_by_model
from ragbandit.additions.init.model_lists import MOST_NAMED, OPENAI, ModelCatalog, ModelDescription, find_server
from ragbandit.router.cli.console import errors
from ragbandit.router.comparison.holdback_size import usual_size
from ragbandit.router.config.settings import Settings
from ragbandit.router.config.strict_yaml import yaml_text
from ragbandit.shared.additions import offered_places, surfaces
from ragbandit.shared.errors import ConfigError, InvalidInput, RagBanditError, require_service
from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.shared.texts import formats
from ragbandit.shared.texts.formats import did_you_mean, one_line
from ragbandit.strategies.arms.callable import CallableArm
from ragbandit.workers.setup.generator_kinds import GeneratorKind, kinds
from ragbandit.workers.setup.retrievers import retriever_kind, with_choice
from ragbandit.workers.verbs.index import build_index

#: billions of parameters in a model's name, such as "qwen2.5:14b" or "Llama-3.2-3B-Instruct"
_BILLIONS: Final = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![a-z0-9])", re.IGNORECASE)


def choose_models(server: ModelCatalog, *, wanted: Sequence[str]) -> tuple[tuple[ModelDescription, ...], str]:
    """Choose one or two models of a server. Returns (models, the small one first; reason). Raises ConfigError."""
    models = {model.name: model for model in server.models}
    names = ", ".join(list(models)[:MOST_NAMED]) + (", ..." if len(models) > MOST_NAMED else "")
    unknown = [name for name in wanted if name not in models]
    if unknown or len(wanted) > 2:
        fault = f"has no model {unknown[0]!r}" if unknown else "is set up with two models at most"
        remedy = f"{did_you_mean(unknown[0], models) if unknown else ''}it has {names}"
        raise ConfigError(f"{server.url} {fault}", field="--model", remedy=remedy)
    if wanted:
        return tuple(models[name] for name in wanted), "as --model says"
    if len(models) == 1:
        return server.models, "the only one there"
    pair = _by_size(server.models)
    if pair:
        return pair, "the smallest and the largest by name; --model takes others"
    pair = _siblings(models)
    if pair:
        return pair, "a model and its smaller sibling by name; --model takes others"
    if len(models) == 2:
        return server.models, "in the server's order, since names have no sizes; --model SMALL --model LARGE changes it"
    remedy = "name one, or the small one and the large one: --model SMALL --model LARGE"
    message = f"the names do not show which to choose of {server.url}'s {len(models)} models: {names}"
    raise ConfigError(message, field="--model", remedy=remedy)


def _by_size(models: Sequence[ModelDescription]) -> tuple[ModelDescription, ...]:
    """The smallest and the largest model by the sizes in their names; () if a size is missing, or all are equal."""
    sizes = [max(map(float, _BILLIONS.findall(model.name)), default=0.0) for model in models]
    if not all(sizes) or len(set(sizes)) == 1:
        return ()
    return models[sizes.index(min(sizes))], models[sizes.index(max(sizes))]


def _siblings(models: Mapping[str, ModelDescription]) -> tuple[ModelDescription, ...]:
    names = [(f"{large}-{ending}", large) for large in models for ending in ("mini", "small", "lite", "nano")]
    pairs = [(models[small], models[large]) for small, large in names if small in models]
    return max(pairs, key=lambda pair: pair[1].created, default=())


Params = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    pipelines: Mapping[str, Params]
    #: why workers cannot run here; "" if they can
    no_workers: str = ""
    server: ModelCatalog | None = None
    #: chosen models of the server, the small one first
    models: tuple[ModelDescription, ...] = ()
    #: reason of the choice of models
    picked: str = ""
    local: bool = False
    #: (name, description) of the bm25 index to search; None if there is none
    index: tuple[str, str] | None = None
    #: whether coding agents call the service
    agents: bool = False


def find_surroundings(
    *, url: str | None, key_env: str, wanted: Sequence[str], documents: Path | None, pipelines: Sequence[str]
) -> Surroundings:
    """Find models and pipelines. Raises RagBanditError if an option names something that cannot be used."""
    try:
        require_service()
    except ConfigError as error:
        if url or wanted or documents or pipelines:
            raise
        return Surroundings(pipelines={}, no_workers=str(error))
    arms = dict(_pipeline_arm(text) for text in pipelines)
    if len(arms) > 1:
        return Surroundings(pipelines=arms)
    server = find_server(url=url, key_env=key_env, environ=os.environ)
    if wanted and server is None:
        raise ConfigError("no model server was found", field="--model", remedy="give its address with --url")
    models, picked = ((), "") if server is None else choose_models(server, wanted=wanted)
    if server is not None and any(model.supports is None for model in models):
        abilities = abilities_by_model([model.name for model in models], url=server.url, key=server.key)
        models = tuple(replace(model, supports=model.supports or abilities.get(model.name)) for model in models)
    local = (kind := _local_kind()) is not None and all(importlib.util.find_spec(name) for name in kind.packages)
    return Surroundings(pipelines=arms, server=server, models=models, picked=picked, local=local)


def _local_kind() -> type[GeneratorKind] | None:
    """The kind of the default generator, which runs in workers; None if the addition that has it is missing."""
    kind = kinds().get(Settings().generator.name)
    return kind if kind is not None and kind.is_local else None


def _pipeline_arm(text: str) -> tuple[str, Params]:
    """Returns (name, params) of the arm for "name=package.module:object". Raises ConfigError for an unusable object."""
    name, _, path = text.partition("=")
    try:
        CallableArm(name=name, object=path)
    except ConfigError as error:
        raise ConfigError(error.message, field="--pipeline", remedy=error.remedy) from error
    return name, {"class": "callable", "object": path}


def find_or_build_index(here: Surroundings, *, documents: Path | None, settings: Settings) -> tuple[str, str] | None:
    """Returns (name, description) of an index: new if `documents` are named, else an existing one, else a new one.

    None without documents, or without a model to answer from them. Raises RagBanditError if `documents` cannot be used.
    """
    if not (here.models or here.local):
        return None
    if documents is None:
        folder = Path(settings.data_dir).absolute() / "indexes"
        names = sorted({file.parent.name for file in folder.glob("*/index.json")})
        for name in sorted(names, key=settings.retriever.index.__ne__):  # the configured index first
            with contextlib.suppress(RagBanditError):  # an index that this retriever cannot read
                return name, _passages_text(retriever_kind(with_choice(settings, index=name)).info())
    usual = map(Path, ("docs", "documents", "corpus.jsonl"))
    corpus = documents or next((path for path in usual if path.exists()), None)
    if corpus is None:
        return None
    if not corpus.exists():
        raise InvalidInput(f"{corpus} does not exist", field="--documents", remedy="give a folder or a corpus.jsonl")
    try:
        description = build_index(retriever_kind(settings), corpus=corpus)
    except RagBanditError as error:
        if documents or isinstance(error, ConfigError):  # a missing package, without which no arm can search
            raise
        errors.say(f"{corpus} is not indexed: {error}")
        return None
    return settings.retriever.index, f"{_passages_text(description)} of {corpus}"


def _passages_text(index: Mapping[str, object]) -> str:
    return f"{index['passages']} passage{'' if index['passages'] == 1 else 's'}"


#: interfaces that coding agents use -> their paths
AGENT_DOORS: Final = {name: path for name, path in surfaces().items() if path}
#: preference -> cost term -> `reward.weight`; a right answer is worth a cost of 1 / weight
WEIGHTS: Final = {
    "economy": {"steps": 0.2, "seconds_total": 0.05, "dollars": 100.0},
    "balanced": {"steps": 0.05, "seconds_total": 0.01, "dollars": 20.0},
    "quality": {"steps": 0.01, "seconds_total": 0.002, "dollars": 4.0},
}
#: OpenAI's reasoning models, which refuse a temperature and stop strings; the generator itself cuts at stop strings
_REASONING: Final = re.compile(r"o\d|gpt-[5-9]")
_NO_PRICE: Final = (
    "No price is known, so tokens cost nothing. Give each generator its price in dollars per million tokens, "
    "token_prices: {input: ..., output: ...} (`ragbandit init --force --price 0.15/0.6`, once for each model). Then "
    "charge them by reward: cost {dollars: 1.0}, and weight 1 / the dollars that a right answer is worth."
)


#: {"input": ..., "output": ...} for each model, the small one first; dollars per million tokens
Prices = Sequence[Mapping[str, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    topic: str
    why: str
    sections: dict[str, Any]
    #: advice that is written only to the file
    note: str = ""


def draft_choices(here: Surroundings, *, preference: str, key_env: str, prices: Prices = ()) -> list[Choice]:
    """The choices for these surroundings. preference: a key of WEIGHTS. prices: one for each model, or none."""
    arms = _arms(here)
    choices = [_server_choice(here, key_env=key_env, prices=prices) if here.server else _no_server_choice(here)]
    if here.server and here.server.embeddings and "embeddings" in offered_places("doors"):
        choices.append(_embeddings_choice(here.server, key_env=key_env))
    if here.index is not None:
        name, contents = here.index
        why = f"the index {name} has {contents} (bm25); `rerank` reorders its hits (docs/generators.md)"
        choices.append(Choice(topic="search", why=why, sections={"retriever": {"name": "bm25", "index": name}}))
    choices.append(_arms_choice(here, arms))
    if len(arms) > 1:
        choices.append(_incumbent_choice(arms))
    if here.agents and AGENT_DOORS:
        choices.append(_agents_choice())
    return [*choices, _reward_choice(preference, unit=cost_unit(here, prices=prices))]


def as_yaml(choices: Sequence[Choice]) -> str:
    head = (
        "Settings of RagBandit, written by `ragbandit init`. Every other setting has its default: `ragbandit "
        "validate --all` prints them. Secrets belong in the environment, never here."
    )
    parts = [_yaml_comment(head)]
    for choice in choices:
        body = yaml_text(choice.sections, default_flow_style=None, width=110)
        parts.append(_yaml_comment(choice.why) + (body if choice.sections else "") + _yaml_comment(choice.note))
    return "\n".join(parts)


def cost_unit(here: Surroundings, *, prices: Prices) -> str:
    """The cost term of the reward. With pipelines it is seconds_total, because each pipeline counts as one step."""
    if here.pipelines:
        return "seconds_total"
    return "dollars" if prices else "steps"


def right_answer_worth(preference: str, *, unit: str) -> str:
    return formats.worth(1.0 / WEIGHTS[preference][unit], unit)


def parse_price(text: str) -> dict[str, float]:
    try:
        prices = [float(part) for part in text.split("/")]
    except ValueError:
        prices = []
    if len(prices) != 2 or not all(0.0 <= price < math.inf for price in prices):
        remedy = "give dollars per million tokens as INPUT/OUTPUT, for example 0.15/0.6"
        raise ConfigError(f"{text!r:.40} is not a price", field="--price", remedy=remedy)
    return {"input": prices[0], "output": prices[1]}


def _yaml_comment(text: str) -> str:
    lines = [line for part in text.splitlines() for line in textwrap.wrap(one_line(part), width=110)]
    return "".join(f"# {line}\n" for line in lines)


def _no_server_choice(here: Surroundings) -> Choice:
    default, sections = Settings().generator, dict[str, Any]()
    if len(here.pipelines) > 1:
        why = "your pipelines have models of their own"
    elif here.no_workers:
        why = f"your own code answers, and RagBandit chooses: {here.no_workers}"
    elif here.local and (here.index or here.pipelines):
        sections = {"generator": {"name": default.name, "model": default.model}}
        why = f"workers run {default.model}, for a first try: no model server was found (--url names one)"
    else:
        package = "" if here.local or _local_kind() is None else "torch (pip install '.[models]'), "
        missing = f"{package}documents (--documents DIR), a model server (--url) or your pipelines (--pipeline)"
        why = f"there is nothing to route, so your own code answers. Missing: {missing}"
    return Choice(topic="model", why=why, sections=sections)


def _server_choice(here: Surroundings, *, key_env: str, prices: Prices) -> Choice:
    assert here.server is not None
    url = here.server.url
    names = [model.name for model in here.models]
    sections = [_generator_section(model, url=url, key_env=key_env) for model in here.models]
    for section, price in zip(sections, prices, strict=False):
        section["token_prices"] = price
    preset = {"arms_preset": "chat"} if here.index else {}
    if len(sections) == 1:
        roles, chosen = f"{names[0]} writes the answers", Params(generator=sections[0])
    else:
        roles = f"small is {names[0]}, large is {names[1]}"
        chosen = {"generators": dict(zip(("small", "large"), sections, strict=True))}
    unknown = " and ".join(model.name for model in here.models if model.context_tokens is None)
    note = "" if prices else _NO_PRICE
    if unknown:
        note += f"\nThe server lists no context length of {unknown}; context_tokens sets one."
    images, remedy = _images_clause(here.models)
    why = f"{roles} ({here.picked}), at {url}; {images}"
    return Choice(topic="model", why=why, sections={**chosen, **preset}, note=note + remedy)


def _images_clause(models: Sequence[ModelDescription]) -> tuple[str, str]:
    """Which models read images, and what to do if it is not known. Returns (clause, note for the file)."""
    able = " and ".join(model.name for model in models if "images" in (model.supports or ()))
    unknown = " and ".join(model.name for model in models if model.supports is None)
    clause = f"images go to {able}" if able else "requests with images are refused"
    if not unknown:
        return f"{clause}, as the server describes its models", ""
    remedy = (
        f"\nThe server does not describe whether {unknown} reads images, so requests with images are refused (400) or "
        "go to another model. If it reads them, add this line to its generator:\nsupports: [tools, json, images]"
    )
    return f"{clause}: the server does not describe {unknown} (generator.supports)", remedy


def _embeddings_choice(server: ModelCatalog, *, key_env: str) -> Choice:
    names = ", ".join(model.name for model in server.embeddings[:MOST_NAMED])
    options: Params = {"base_url": server.url}
    if key_env != OpenAiOptions().api_key_env:
        options["api_key_env"] = key_env
    prices = {model.name: [model.price["input"], model.price["output"]] for model in server.embeddings if model.price}
    if len(prices) == len(server.embeddings):  # if only some models had prices, the others would be refused
        options["token_prices"] = prices
    why = f"/v1/embeddings passes requests on to the same server, which has {names}"
    return Choice(topic="embed", why=why, sections={"embeddings": options})


def _generator_section(model: ModelDescription, *, url: str, key_env: str) -> Params:
    options: Params = {"base_url": url, "bytes_per_token": 3.0}
    if key_env != OpenAiOptions().api_key_env:
        options["api_key_env"] = key_env
    if url == OPENAI:
        options["max_tokens_field"] = "max_completion_tokens"
        if _REASONING.match(model.name):
            options["fields"] = {"temperature": None, "stop": None, "reasoning_effort": "low"}
    generator: Params = {"name": "openai", "model": model.name}
    if model.context_tokens is not None:
        generator["context_tokens"] = model.context_tokens
    if model.supports is not None:
        generator["supports"] = list(model.supports)
    return generator | {"openai": options}


def _arms(here: Surroundings) -> dict[str, Params]:
    """Arms for pipelines and models; some search if there is an index. Without both, arms that the caller runs."""
    arms = dict(here.pipelines)
    if here.models and not here.index:
        if len(here.models) == 1:
            return arms | {"model": {}}
        return arms | {size: {"class": "model", "generator": size} for size in ("small", "large")}
    names = ["no_retrieval", "single_step", "multi_step"] if here.index else ["no_retrieval"]
    if len(here.models) == 2:
        sizes = {"no_retrieval": ["small"], "single_step": ["small", "large"], "multi_step": ["large"]}
        arms |= {f"{name}_{size}": {"class": name, "generator": size} for name in names for size in sizes[name]}
    elif here.models or (here.local and (here.index or len(arms) == 1)):
        arms |= {name: {} for name in names}
    return arms or {"fast": {"run_by": "caller"}, "deep": {"run_by": "caller"}}


def _arms_choice(here: Surroundings, arms: dict[str, Params]) -> Choice:
    names, note = ", ".join(arms), ""
    if next(iter(arms.values())).get("run_by") == "caller":
        why = f"{names} stand for your own pipelines, the cheap one first: rename them"
        note = "`ragbandit advise QUESTIONS.jsonl --module MODULE:NAME` decides whether routing between them pays."
    elif len(here.pipelines) > 1:
        why, note = (
            f"{names}: your pipelines",
            "Change `input` to text or messages for one that reads no {question: ...}.",
        )
    elif here.index is None:
        why = f"{names}: all that can answer without documents (--documents DIR)"
    else:
        why = f"{names}: from memory, or after searches"
    described = "`description`: a text in an arm, on what it does, for the policy `llm` (docs/policies.md)"
    note = f"{note}\n{described}" if note else described
    return Choice(topic="arms", why=why, sections={"arms": arms}, note=note)


def _incumbent_choice(arms: dict[str, Params]) -> Choice:
    usual = ("single_step_large", "single_step", "large", *arms)
    incumbent = next(name for name in usual if name in arms)
    harm = Settings().policy.harm
    held = usual_size("")
    why = f"{incumbent} is the incumbent, and answers {held.share:.0%} of the questions for comparison (holdback)"
    note = (
        "incumbent: the arm that would answer without a router (docs/tutorial.md says more)\n"
        "harm: share of the incumbent's reward that may be lost while the router learns; a larger one learns faster\n"
        "holdback: share of the questions that always go to the incumbent, since `ragbandit report` compares with it;\n"
        "    once `until` of its answers are learned, the share falls to `then`"
    )
    sections = {"policy": {"incumbent": incumbent, "harm": harm, "holdback": {"arm": incumbent, **held.setting}}}
    return Choice(topic="policy", why=why, sections=sections, note=note)


def _agents_choice() -> Choice:
    why = f"coding agents: one decision is for a whole task at {' and '.join(AGENT_DOORS.values())} (docs/agents.md)"
    return Choice(topic="agents", why=why, sections={"conversation": {"units": dict.fromkeys(AGENT_DOORS, "task")}})


def _reward_choice(preference: str, *, unit: str) -> Choice:
    weights = {name: weight[unit] for name, weight in WEIGHTS.items()}
    others = ", ".join(f"{name} {right_answer_worth(name, unit=unit)}" for name in WEIGHTS if name != preference)
    sections = {"reward": {"weight": weights[preference], "cost": {unit: 1.0}}, "cost_weights": weights}
    why = f"{preference}: a right answer is worth {right_answer_worth(preference, unit=unit)}"
    return Choice(topic="price", why=why, sections=sections, note=f"A question may name another price: {others}.")

"""Draft of a first configuration: every choice with its reason, as lines for a terminal and as a commented file."""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.formats import number, one_line
from ragbandit.shared.generator_options import OpenAiOptions
from ragbandit.workers.initial.servers import OPENAI, USUAL_PORTS, Model
from ragbandit.workers.initial.surroundings import Params, Surroundings

#: what matters to the user -> reward.weight by the cost that is charged. 1 / weight is what a right answer is worth
WEIGHTS: Final = {
    "economy": {"steps": 0.2, "seconds_total": 0.05, "dollars": 100.0},
    "balanced": {"steps": 0.05, "seconds_total": 0.01, "dollars": 20.0},
    "quality": {"steps": 0.01, "seconds_total": 0.002, "dollars": 4.0},
}
#: tokens of prompt and answer together where a server does not tell what its model takes: what Ollama serves by default
_CONTEXT_TOKENS: Final = 4096
#: models of OpenAI that reason, and refuse a temperature and stop strings (the generator heeds these itself)
_REASONING: Final = re.compile(r"o\d|gpt-[5-9]")
_HEAD: Final = (
    "Settings of RagBandit, written by `ragbandit init`. Every other setting has its default: `ragbandit "
    "validate --all` prints them. Secrets belong in the environment, never here."
)
_NO_PRICE: Final = (
    "Until prices are known {who}. Give each generator its price in dollars per million tokens, "
    "price: {{input: ..., output: ...}} (`ragbandit init --price 0.15/0.6`, once for each model). Then charge them by "
    "reward: cost {{dollars: 1.0}}, and weight 1 / the dollars that a right answer is worth."
)


#: {"input", "output"} of each model, dollars per million tokens
Prices = Sequence[Mapping[str, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A choice: sections of the file, and why they are as they are."""

    topic: str
    why: str
    sections: dict[str, Any]
    #: what the user should do about it, said in the file alone
    note: str = ""


def draft(here: Surroundings, *, preference: str, key_env: str, prices: Prices = ()) -> list[Choice]:
    """The choices for these surroundings. preference: a key of WEIGHTS; key_env: variable with the server's key.

    prices: those of the models, in their order; none: they are not known.
    """
    arms = _arms(here)
    choices = [_server(here, key_env=key_env, prices=prices) if here.server else _no_server(here)]
    if here.index is not None:
        name, contents = here.index
        why = f"The index {name} has {contents} (bm25)"
        choices.append(Choice(topic="search", why=why, sections={"retriever": {"name": "bm25", "index": name}}))
    choices.append(Choice(topic="arms", why=_why_arms(here, arms), sections={"arms": arms}))
    if len(arms) > 1:
        choices.append(_incumbent(arms))
    return [*choices, _reward(preference, unit=cost_unit(here, prices=prices))]


def as_yaml(choices: Sequence[Choice]) -> str:
    """The file: every choice below its reason."""
    parts = [_comment(_HEAD)]
    for choice in choices:
        body = yaml.safe_dump(choice.sections, sort_keys=False, default_flow_style=None, width=110)
        note = _comment(choice.note) if choice.note else ""
        parts.append(_comment(choice.why) + (body if choice.sections else "") + note)
    return "\n".join(parts)


def cost_unit(here: Surroundings, *, prices: Prices) -> str:
    """The cost that is charged: dollars where prices are known, else steps; seconds where pipelines are arms, each of
    which counts as one step.
    """
    return "seconds_total" if here.pipelines else "dollars" if prices else "steps"


def worth(preference: str, *, unit: str) -> str:
    """What a right answer is worth, in words."""
    return f"{number(1 / WEIGHTS[preference][unit])} {'seconds' if unit == 'seconds_total' else unit}"


def parsed_price(text: str) -> dict[str, float]:
    """The price of a model as a user writes it: "INPUT/OUTPUT", dollars per million tokens. Raises ConfigError."""
    try:
        read, written = (float(part) for part in text.split("/"))
    except ValueError:
        read = written = math.nan
    if not (0.0 <= read < math.inf and 0.0 <= written < math.inf):
        remedy = "give dollars per million tokens as INPUT/OUTPUT, for example 0.15/0.6"
        raise ConfigError(f"{text!r:.40} is not a price", field="--price", remedy=remedy)
    return {"input": read, "output": written}


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(one_line(text), width=110))


def _no_server(here: Surroundings) -> Choice:
    """Who writes the answers of the arms that workers run: the local model, or nobody."""
    tried = ", ".join(f"{product} {port}" for product, port in USUAL_PORTS.items())
    name, sections = Settings().generator.model, dict[str, Any]()
    if len(here.pipelines) > 1:
        why = "Your pipelines have models of their own"
    elif here.no_workers:
        why = f"{here.no_workers}: without it your own code answers, and RagBandit chooses"
    elif here.local:
        sections = {"generator": {"name": "local", "model": name}}
        why = (
            f"No model server answers on the usual ports ({tried}), so workers run {name} themselves: good for a first "
            "try, not for real answers; --url names a server"
        )
    else:
        why = (
            f"There is no model: no server answers on the usual ports ({tried}) and torch is not installed, so your "
            "own code answers and RagBandit chooses (/v1/route). Start a server, give --url, or: "
            "pip install '.[models]'"
        )
    return Choice(topic="model", why=why, sections=sections)


def _server(here: Surroundings, *, key_env: str, prices: Prices) -> Choice:
    """The generators of the models on the server: one as `generator`, two as `generators` small and large."""
    assert here.server is not None
    url, names = here.server.url, [model.name for model in here.models]
    sections = [_generator(model, url=url, key_env=key_env) for model in here.models]
    for section, price in zip(sections, prices, strict=False):
        section["price"] = price
    preset = {"arms_preset": "chat"}
    charged = "" if prices else "; no price is known, so steps are charged"
    if len(sections) == 1:
        why = f"{url}: {names[0]} writes the answers ({here.picked}){charged}"
        note = "" if prices else _NO_PRICE.format(who="tokens cost nothing")
        return Choice(topic="model", why=why, sections={"generator": sections[0], **preset}, note=note)
    why = f"{url}: small is {names[0]}, large is {names[1]} ({here.picked}){charged}"
    note = (
        "" if prices else _NO_PRICE.format(who="an answer of the large model costs what one of the small model costs")
    )
    named = dict(zip(("small", "large"), sections, strict=True))
    return Choice(topic="model", why=why, sections={"generators": named, **preset}, note=note)


def _generator(model: Model, *, url: str, key_env: str) -> Params:
    options: Params = {"base_url": url, "bytes_per_token": 3.0}
    if key_env != OpenAiOptions().api_key_env:
        options["api_key_env"] = key_env
    if url == OPENAI:
        options["max_tokens_field"] = "max_completion_tokens"
        if _REASONING.match(model.name):
            options["fields"] = {"temperature": None, "stop": None, "reasoning_effort": "low"}
    context = max(256, model.context_tokens or _CONTEXT_TOKENS)
    return {"name": "openai", "model": model.name, "context_tokens": context, "openai": options}


def _arms(here: Surroundings) -> dict[str, Params]:
    """The pipelines; the arms of one model, or of both with the model's size in their names; else two of the caller."""
    arms = dict(here.pipelines)
    names = ["no_retrieval", *(["single_step", "multi_step"] if here.index else [])]
    if len(here.models) == 2:
        sizes = {"no_retrieval": ["small"], "single_step": ["small", "large"], "multi_step": ["large"]}
        if not here.index:
            sizes["no_retrieval"].append("large")
        arms |= {f"{name}_{size}": {"class": name, "generator": size} for name in names for size in sizes[name]}
    elif here.models or (here.local and len(arms) < 2):
        arms |= {name: {} for name in names}
    return arms or {"fast": {"run_by": "caller"}, "deep": {"run_by": "caller"}}


def _why_arms(here: Surroundings, arms: dict[str, Params]) -> str:
    names = ", ".join(arms)
    if next(iter(arms.values())).get("run_by") == "caller":
        return f"{names} stand for your own pipelines, the cheap one first: rename them to your liking"
    if len(here.pipelines) > 1:
        return f"{names}: your pipelines; change `input` to text or messages where one wants no {{question: ...}}"
    if here.index is None:
        more = "documents (--documents DIR) add arms that search" if here.models or here.local else "name another"
        return f"{names}: all that can answer here; {more}"
    return f"{names}: from memory, after one search, after several"


def _incumbent(arms: dict[str, Params]) -> Choice:
    """The arm that would answer without a router: of the larger model the one that searches once, else the first."""
    usual = ("single_step_large", "single_step", "no_retrieval_large", *arms)
    incumbent = next(name for name in usual if name in arms)
    harm = Settings().policy.harm
    why = (
        f"{incumbent} is the incumbent, the arm that would answer without a router (is it another? name it): while "
        f"the router learns it may lose {harm:.0%} of what {incumbent} earns (harm). That costs time: most of the "
        "first thousand questions go to it. A larger harm learns faster, incumbent: null fastest; labelled "
        "questions of before shorten it (ragbandit policy warm)"
    )
    return Choice(topic="policy", why=why, sections={"policy": {"incumbent": incumbent, "harm": harm}})


def _reward(preference: str, *, unit: str) -> Choice:
    weights = {name: weight[unit] for name, weight in WEIGHTS.items()}
    others = ", ".join(f"{name} {worth(name, unit=unit)}" for name in WEIGHTS if name != preference)
    why = (
        f"{preference}: a right answer is worth {worth(preference, unit=unit)}; a question may come with another of "
        f"these prices by its name ({others})"
    )
    sections = {"reward": {"weight": weights[preference], "cost": {unit: 1.0}}, "prices": weights}
    return Choice(topic="price", why=why, sections=sections)

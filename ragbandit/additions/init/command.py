"""Verb `init`: writes a first config.yaml from the models and documents that it finds, and the user's preference."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.prompt import Confirm, InvalidResponse, Prompt, PromptBase

from ragbandit.additions.init import draft
from ragbandit.router.cli.console import console
from ragbandit.router.cli.options import ConfigOption
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.files import atomic_file
from ragbandit.workers.verbs.validate import check_settings

_BALANCED = "balanced"


def init(
    *,
    url: Annotated[str | None, typer.Option(help="model server; default: OPENAI_BASE_URL, OpenAI, usual ports")] = None,
    key_env: Annotated[str, typer.Option(help="environment variable that holds the server's key")] = "OPENAI_API_KEY",
    model: Annotated[list[str] | None, typer.Option(help="model to use; repeat for a second, larger one")] = None,
    documents: Annotated[
        Path | None, typer.Option(help="documents to index; default: docs, documents or corpus.jsonl")
    ] = None,
    pipeline: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PACKAGE.MODULE:OBJECT", help="LangChain or LlamaIndex object")
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option(metavar="INPUT/OUTPUT", help="dollars per million tokens, small model first")
    ] = None,
    prefer: Annotated[str | None, typer.Option(help=f"{', '.join(draft.WEIGHTS)}: worth of a right answer")] = None,
    agents: Annotated[bool, typer.Option("--agents", help="coding agents call it: one decision for a task")] = False,
    yes: Annotated[bool, typer.Option("--yes", help=f"ask nothing; without --prefer: {_BALANCED}")] = False,
    force: Annotated[bool, typer.Option("--force", help="overwrite an existing file")] = False,
    config: ConfigOption = None,
) -> None:
    """Write a first config.yaml: looks for models and documents, and asks what it needs to know.

    Asks whether coding agents call, for unknown prices of two models, and what a right answer is worth. Model servers
    only list and describe their models. No secret is written.
    """
    file = Path(config or os.environ.get("RAGBANDIT_CONFIG") or "config.yaml")
    _check_target(file, force=force)
    if prefer is not None and prefer not in draft.WEIGHTS:
        raise ConfigError(f"{prefer!r} is unknown", field="--prefer", remedy=f"known: {', '.join(draft.WEIGHTS)}")
    sys.path.append(configuration.class_folder(file))  # --pipeline may name a module there
    settings = Settings(data_dir=os.environ.get("RAGBANDIT_DATA_DIR") or Settings().data_dir)
    prices = [draft.parse_price(text) for text in price or []]
    asks = not (yes or prefer) and sys.stdin.isatty()
    if not (asks or yes or prefer):
        remedy = f"give --yes, which is --prefer {_BALANCED}, or --prefer with one of: {_worth_texts(unit='steps')}"
        raise ConfigError("there is no terminal to ask what a right answer is worth", field="--prefer", remedy=remedy)
    surroundings = draft.find_surroundings(
        url=url, key_env=key_env, wanted=model or [], documents=documents, pipelines=pipeline or []
    )
    # A missing package should end the command now, not after the index and the questions.
    trial = file.with_name(f".{file.name}.trial")
    _write(
        draft.as_yaml(draft.draft_choices(surroundings, preference=_BALANCED, key_env=key_env)), file=trial, force=True
    )
    trial.unlink()
    index = draft.find_or_build_index(surroundings, documents=documents, settings=settings)
    surroundings = replace(surroundings, index=index, agents=agents)
    models = surroundings.models
    if prices and len(prices) != len(models):
        message = f"{len(prices)} prices for {len(models)} models"
        raise ConfigError(message, field="--price", remedy="give one for each model, the small one first")
    listed_prices = [dict(model.price) for model in models if model.price is not None]
    if not prices and len(listed_prices) == len(models):
        prices = listed_prices
    for choice in draft.draft_choices(surroundings, preference=_BALANCED, key_env=key_env)[:-1]:
        _print_choice(choice)
    if asks:
        if surroundings.server is not None and draft.AGENT_DOORS and not agents:
            question = "Do coding agents, such as Claude Code or Codex, call this service?"
            surroundings = replace(surroundings, agents=Confirm.ask(question, default=False, console=console))
        prices = prices or _ask_prices(surroundings)
        prefer = _ask_preference(unit=draft.cost_unit(surroundings, prices=prices))
    choices = draft.draft_choices(surroundings, preference=prefer or _BALANCED, key_env=key_env, prices=prices)
    _print_choice(choices[-1])
    settings = _write(draft.as_yaml(choices), file=file, force=force)
    next_step = _next_step(settings, can_run_workers=not surroundings.no_workers)
    console.print(escape(f"wrote {file}{next_step}"), soft_wrap=True, highlight=False)


def _print_choice(choice: draft.Choice) -> None:
    console.print(escape(f"{choice.topic:<7} {choice.why}."), soft_wrap=True, highlight=False)


def _next_step(settings: Settings, *, can_run_workers: bool) -> str:
    if len(settings.arms) == 1:
        arm = next(iter(settings.arms))
        caller_arms = f"arms that your own code runs (arms: {{{arm}: {{...}}, own: {{run_by: caller}}}})"
        missing = f"documents (--documents DIR), a second model, your pipelines (--pipeline), or {caller_arms}"
        return f", which is not ready: {arm} is the only arm, so there is nothing to route. Missing: {missing}"
    if not can_run_workers:
        return ". Next: Router.open() in Python"
    call = 'in another terminal: `ragbandit answer "QUESTION"`' if settings.worker_arms else "POST /v1/route"
    return f". Next: `ragbandit up`, and {call}"


def _check_target(file: Path, *, force: bool) -> None:
    if file.exists() and not force:
        message = f"{file} is there already"
        raise ConfigError(message, field="--config", remedy="overwrite it with --force, or name another")


def _ask_prices(surroundings: draft.Surroundings) -> list[dict[str, float]]:
    """Ask for the prices of the models if there are two; [] if a price is unknown."""
    prices = []
    for model in surroundings.models if len(surroundings.models) == 2 else ():
        question = f"Price of {model.name} in dollars per million tokens, INPUT/OUTPUT (Enter: unknown)"
        price = _PricePrompt.ask(escape(question), default={}, show_default=False, console=console)
        if not price:
            return []
        prices.append(price)
    return prices


class _PricePrompt(PromptBase[dict[str, float]]):
    def process_response(self, value: str) -> dict[str, float]:
        try:
            return draft.parse_price(value) if value.strip() else {}
        except ConfigError as error:
            raise InvalidResponse(escape(str(error))) from error


def _worth_texts(*, unit: str) -> str:
    return ", ".join(f"{name} ({draft.right_answer_worth(name, unit=unit)})" for name in draft.WEIGHTS)


def _ask_preference(*, unit: str) -> str:
    means = " (a step is one round of search and generation)" if unit == "steps" else ""
    question = f"What is a right answer worth{means}? {_worth_texts(unit=unit)}"
    return Prompt.ask(question, choices=list(draft.WEIGHTS), default=_BALANCED, show_choices=False, console=console)


def _write(text: str, *, file: Path, force: bool) -> Settings:
    """Write the file if its settings pass the checks of `validate`. Returns the settings. Raises ConfigError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(file, durable=False) as new_file:  # in the same folder, from which settings import classes
        new_file.write_text(text, encoding="utf-8")
        settings = configuration.load(new_file).settings
        check_settings(settings)
        _check_target(file, force=force)
    return settings

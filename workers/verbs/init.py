"""Verb `init`: a first config.yaml from this machine's models and documents, and the user's choice."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.prompt import Prompt

from ragbandit.router.cli.console import ConfigOption, console
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.files import whole_file
from ragbandit.workers.draft import (
    WEIGHTS,
    Choice,
    Surroundings,
    as_yaml,
    cost_unit,
    draft,
    look_around,
    parsed_price,
    worth,
)
from ragbandit.workers.verbs.validate import check_settings

_BALANCED = "balanced"


def init(
    *,
    url: Annotated[str | None, typer.Option(help="model server; default: OPENAI_BASE_URL, OpenAI, usual ports")] = None,
    key_env: Annotated[str, typer.Option(help="environment variable that holds the server's key")] = "OPENAI_API_KEY",
    model: Annotated[list[str] | None, typer.Option(help="model to use; twice: the small one, the large one")] = None,
    documents: Annotated[
        Path | None, typer.Option(help="to index; default: ./docs, ./documents, ./corpus.jsonl")
    ] = None,
    pipeline: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PACKAGE.MODULE:OBJECT", help="LangChain or LlamaIndex object")
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option(metavar="INPUT/OUTPUT", help="dollars per million tokens, small model first")
    ] = None,
    prefer: Annotated[str | None, typer.Option(help=f"{', '.join(WEIGHTS)}: what a right answer is worth")] = None,
    yes: Annotated[bool, typer.Option("--yes", help=f"ask nothing: {_BALANCED}, prices unknown")] = False,
    force: Annotated[bool, typer.Option("--force", help="overwrite an existing file")] = False,
    config: ConfigOption = None,
) -> None:
    """Write a first config.yaml: looks for models and documents, asks for the prices of two models and for one choice.

    Only lists of models are requested of servers. No secret is written.
    """
    file = Path(config or os.environ.get("RAGBANDIT_CONFIG") or "config.yaml")
    _check_target(file, force=force)
    if prefer is not None and prefer not in WEIGHTS:
        raise ConfigError(f"{prefer!r} is unknown", field="--prefer", remedy=f"known: {', '.join(WEIGHTS)}")
    sys.path.append(configuration.class_folder(file))  # as for classes that the file names
    settings = Settings(data_dir=os.environ.get("RAGBANDIT_DATA_DIR") or Settings().data_dir)
    prices = [parsed_price(text) for text in price or []]
    asks = not (yes or prefer) and sys.stdin.isatty()
    if not (asks or yes or prefer):
        remedy = f"give --yes, which is --prefer {_BALANCED}, or --prefer with one of: {_worths(unit='steps')}"
        raise ConfigError("there is no terminal to ask what a right answer is worth", field="--prefer", remedy=remedy)
    here = look_around(
        url=url, key_env=key_env, wanted=model or [], documents=documents, pipelines=pipeline or [], settings=settings
    )
    if prices and len(prices) != len(here.models):
        message = f"{len(prices)} prices for {len(here.models)} models"
        raise ConfigError(message, field="--price", remedy="give one for each model, the small one first")
    known = [dict(model.price) for model in here.models if model.price is not None]
    known = known if len(known) == len(here.models) else []
    prices = prices or known or (_asked_prices(here) if asks else [])
    *others, price_choice = draft(here, preference=prefer or _BALANCED, key_env=key_env, prices=prices)
    for choice in others:
        _print(choice)
    if asks:  # the findings are printed before the question
        chosen = _preference(unit=cost_unit(here, prices=prices))
        *others, price_choice = draft(here, preference=chosen, key_env=key_env, prices=prices)
    _print(price_choice)
    written = _write(as_yaml([*others, price_choice]), file=file, force=force)
    console.print(escape(f"wrote {file}{_next(written, here=here)}"), soft_wrap=True, highlight=False)


def _print(choice: Choice) -> None:
    console.print(escape(f"{choice.topic:<7} {choice.why}."), soft_wrap=True, highlight=False)


def _next(settings: Settings, *, here: Surroundings) -> str:
    """The next step, or what is missing before there is one."""
    if len(settings.arms) == 1:
        arm = next(iter(settings.arms))
        own = f"arms that your own code runs (arms: {{{arm}: {{...}}, own: {{run_by: caller}}}})"
        missing = f"documents (--documents DIR), a second model, your pipelines (--pipeline), or {own}"
        return f", which is not ready: {arm} is the only arm, so there is nothing to route. Missing: {missing}"
    if here.no_workers:
        return ". Next: Router.open() in Python"
    call = 'in another terminal: ragbandit answer "..."' if settings.worker_arms else "POST /v1/route"
    return f". Next: ragbandit up, and {call}"


def _check_target(file: Path, *, force: bool) -> None:
    if file.exists() and not force:
        message = f"{file} is there already"
        raise ConfigError(message, field="--config", remedy="overwrite it with --force, or name another")


def _asked_prices(here: Surroundings) -> list[dict[str, float]]:
    """The prices of two models, as the user gives them; [] if one is unknown."""
    prices = list[dict[str, float]]()
    if len(here.models) == 2:
        url = here.server.url if here.server else ""
        console.print(escape(f"{url} has two models, {here.picked}."), highlight=False)
    for model in here.models if len(here.models) == 2 else ():
        question = f"Price of {model.name} in dollars per million tokens, INPUT/OUTPUT (Enter: unknown)"
        given = Prompt.ask(escape(question), default="", show_default=False, console=console)
        if not given.strip():
            return []
        prices.append(parsed_price(given))
    return prices


def _worths(*, unit: str) -> str:
    return ", ".join(f"{name} ({worth(name, unit=unit)})" for name in WEIGHTS)


def _preference(*, unit: str) -> str:
    """The answer to the question of what a right answer is worth."""
    means = " (a step is one round of search and generation)" if unit == "steps" else ""
    question = f"What is a right answer worth{means}? {_worths(unit=unit)}"
    return Prompt.ask(question, choices=list(WEIGHTS), default=_BALANCED, show_choices=False, console=console)


def _write(text: str, *, file: Path, force: bool) -> Settings:
    """Write the file, whole, once it was accepted as `validate` accepts it; the settings. Raises ConfigError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file, durable=False) as beside:  # classes are looked for in its folder
        beside.write_text(text, encoding="utf-8")
        settings = configuration.load(beside).settings
        check_settings(settings)
        _check_target(file, force=force)
    return settings

"""What deployment files name of ours: verbs with their options, and settings in the environment."""

from pathlib import Path
from typing import Any

import typer

from ragbandit.router.cli.lazy_verbs import LazyGroup
from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import Settings
from ragbandit.workers.cli import app

ROOT = Path(__file__).parents[3]


def check_command(command: list[str]) -> None:
    """A command line of `ragbandit`: its verb exists and takes these options."""
    program, *arguments = command
    assert Path(program).name == "ragbandit", command
    verb: Any = typer.main.get_command(app)
    verb.make_context("ragbandit", list(arguments), resilient_parsing=True)
    while isinstance(verb, LazyGroup):
        verb, arguments = verb.load(arguments[0]), arguments[1:]
    known = {option for parameter in verb.params for option in parameter.opts}
    assert {word for word in arguments if word.startswith("--")} <= known, command


def settings_of(environment: dict[str, str], *, config: str, folder: Path) -> Settings:
    """The settings of a process with this environment and this configuration; an unknown name is refused."""
    file = folder / "config.yaml"
    file.write_text(config, encoding="utf-8")
    return load(file, environ=environment | {"RAGBANDIT_CONFIG": str(file)}).settings

"""The verbs that need no service: simulate a policy on a table, train one that learns from tables."""

import typer

__all__ = ["add_offline_verbs"]


def add_offline_verbs(app: typer.Typer) -> None:
    """Put the offline verbs on the command."""
    _add_simulate(app)
    _add_train(app)


def _add_simulate(app: typer.Typer) -> None:
    del app


def _add_train(app: typer.Typer) -> None:
    del app

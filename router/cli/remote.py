"""`ragbandit route`, `answer`, `cancel` and `feedback`: calls to a running service."""

from typing import Annotated

import typer

from ragbandit.router.api.client import Client
from ragbandit.router.cli.console import (
    DEFAULT_URL,
    IdOption,
    JsonOption,
    UrlOption,
    failing_well,
)
from ragbandit.router.cli.inspect import _show
from ragbandit.router.errors import InvalidInput

__all__ = []


def add_calls(app: typer.Typer) -> None:
    @app.command()
    def route(
        question: str,
        url: UrlOption = DEFAULT_URL,
        decision_id: IdOption = None,
        arms: Annotated[list[str] | None, typer.Option("--arm", help="an arm that may be drawn; repeat it")] = None,
        as_json: JsonOption = False,
    ) -> None:
        """Draw an arm for a question (nobody runs it)."""
        with failing_well(), Client(url) as client:
            _show(client.route(question, decision_id=decision_id, arms=arms or None), as_json=as_json)

    @app.command()
    def answer(
        question: str,
        url: UrlOption = DEFAULT_URL,
        decision_id: IdOption = None,
        wait: Annotated[float, typer.Option(help="seconds to wait for the answer")] = 60.0,
        as_json: JsonOption = False,
    ) -> None:
        """Draw an arm and have a worker run it."""
        with failing_well(), Client(url) as client:
            _show(client.answer(question, decision_id=decision_id, wait_s=wait), as_json=as_json)

    @app.command()
    def cancel(decision_id: str, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
        """Have no worker answer a decision; one that is at it stops."""
        with failing_well(), Client(url) as client:
            _show(client.cancel(decision_id), as_json=as_json)

    @app.command()
    def feedback(
        decision_id: str,
        url: UrlOption = DEFAULT_URL,
        feedback_id: IdOption = None,
        label: Annotated[list[str] | None, typer.Option(help="a gold answer; repeat it for several")] = None,
        rating: Annotated[str | None, typer.Option(help="true, false, or a number in [0, 1] or 1-5")] = None,
        scale: Annotated[str, typer.Option(help="of a numeric rating: 0-1 or 1-5")] = "0-1",
        reward: Annotated[float | None, typer.Option(help="the reward itself")] = None,
        source: Annotated[str, typer.Option(help="human, judge or code")] = "human",
        as_json: JsonOption = False,
    ) -> None:
        """Judge a decision: a label, a rating or a reward."""
        with failing_well(), Client(url) as client:
            reply = client.feedback(
                decision_id,
                feedback_id=feedback_id,
                label=label or None,
                rating=_rating(rating),
                scale=scale,
                reward=reward,
                source=source,
            )
            _show(reply, as_json=as_json)


def _rating(text: str | None) -> bool | float | None:
    if text is None or text.lower() in ("true", "false"):
        return None if text is None else text.lower() == "true"
    try:
        return float(text)
    except ValueError as error:
        raise InvalidInput(f"{text!r} is no rating", field="rating", remedy="use true, false or a number") from error

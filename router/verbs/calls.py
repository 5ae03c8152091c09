"""Verbs `route`, `answer` and `feedback send`: calls to a running service."""

import os
import shlex
from typing import Annotated, Any, Final

import typer

from ragbandit.client import Client
from ragbandit.client.replies.decisions import AnswerReply, PendingReply
from ragbandit.router.cli.console import console, print_json
from ragbandit.router.cli.options import ConfigOption, IdOption, JsonOption, KeyOption, UrlOption
from ragbandit.router.cli.tables import show
from ragbandit.router.config import loading as configuration
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.formats import number_or_name, one_line
from ragbandit.shared.texts.redaction import variable_or_hidden

PriceOption = Annotated[str | None, typer.Option("--cost-weight", help="cost weight: number, or name in cost_weights")]


#: fields of an answer that are printed after its text and sources; --json prints all fields
_SHOWN: Final = frozenset({"decision_id", "arm", "status", "steps", "cost", "error"})
#: address that means "all addresses" to a server -> address for a client on this machine
_LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - not listened on


def client_of(url: str | None, *, config: str | None, key_env: str | None) -> Client:
    """A client of the service at `url`, by default the configured one. key_env: variable with the API key."""
    if url is None:
        server = configuration.load(config).settings.server
        url = server.model_copy(update={"host": _LOCAL.get(server.host, server.host)}).url
    key = None if key_env is None else os.environ.get(key_env, "").strip()
    if key_env is not None and not key:
        message = f"the environment variable {variable_or_hidden(key_env)} is not set"
        raise InvalidInput(message, field="key-env", remedy="set the variable to the API key, or name another")
    return Client(url, api_key=key)


def route(
    question: str,
    url: UrlOption = None,
    key_env: KeyOption = None,
    decision_id: IdOption = None,
    cost_weight: PriceOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw an arm for a question. Your own pipeline then runs the arm."""
    price = None if cost_weight is None else number_or_name(cost_weight)
    with client_of(url, config=config, key_env=key_env) as client:
        reply = client.route(question, decision_id=decision_id, cost_weight=price)
        show(reply, as_json=as_json)


def answer(
    question: str,
    url: UrlOption = None,
    key_env: KeyOption = None,
    decision_id: IdOption = None,
    wait: Annotated[float, typer.Option(help="seconds to wait for the answer")] = 60.0,
    cost_weight: PriceOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw an arm for a question, have a worker run it, and print the answer and its sources."""
    price = None if cost_weight is None else number_or_name(cost_weight)
    with client_of(url, config=config, key_env=key_env) as client:
        reply = client.answer(question, decision_id=decision_id, wait_s=wait, cost_weight=price)
    if as_json:
        print_json(reply)
        return
    console.say(_answer_text(reply))
    for number, source in enumerate([] if reply["status"] == "pending" else reply["sources"], start=1):
        score = "" if source["score"] is None else f" (score {source['score']:.3g})"
        console.say(f"{number}. {one_line(source['title'] or source['id'])}{score}")
    console.print()
    shown: dict[str, Any] = {key: value for key, value in reply.items() if key in _SHOWN and value}
    shown["cost"] = {name: amount for name, amount in shown.get("cost", {}).items() if amount}
    show(shown, as_json=False)
    if reply["answer"] is not None:
        options = {"--url": url, "--key-env": key_env, "--config": config}
        used = "".join(f" {option} {shlex.quote(value)}" for option, value in options.items() if value)
        console.say(f"\nrate it: `ragbandit feedback send {reply['decision_id']} --rating true{used}`")


def _answer_text(reply: AnswerReply | PendingReply) -> str:
    if reply["answer"] is not None:
        return reply["answer"]
    if reply["status"] == "pending":
        return f"no answer yet: ask again with --id {reply['decision_id']}"
    return f"no answer ({reply['status']}: {reply['error'] or reply['stop_reason']})"


def feedback(
    decision_id: Annotated[str | None, typer.Argument(help="id of the decision, or of its chat completion")] = None,
    session: Annotated[
        str | None, typer.Option(help="instead of a decision: end the task of this conversation")
    ] = None,
    url: UrlOption = None,
    key_env: KeyOption = None,
    feedback_id: IdOption = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="a gold answer; repeat it for several. With --session also: solved, unsolved"),
    ] = None,
    rating: Annotated[str | None, typer.Option(help="true, false, or a number on the scale")] = None,
    scale: Annotated[str, typer.Option(help="scale of a number as rating, WORST-BEST: 1-5, 0-100, ...")] = "0-1",
    reward: Annotated[float | None, typer.Option(help="the final reward, with the cost already subtracted")] = None,
    event: Annotated[str | None, typer.Option(help="what the user did, by the setting feedback_events")] = None,
    source: Annotated[str | None, typer.Option(help="who judged: human (the default), label, judge or code")] = None,
    rater: Annotated[str | None, typer.Option(help="id of the rater: a person, or a judge")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge a decision: a label, a rating, a reward or an event. With --session, judge a task and end it."""
    if (decision_id is None) == (session is None):
        fault = (
            "a decision id and --session are both given" if session else "neither a decision id nor --session is given"
        )
        raise InvalidInput(fault, field="session", remedy="give one of them: the decision or the task to judge")
    solved = {"solved": True, "unsolved": False}
    if session is not None and label and label[0] in solved and len(label) == 1:
        rating, source, label = str(solved[label[0]]), source or "code", None
    optional = {"event": event, "source": source, "rater": rater}
    with client_of(url, config=config, key_env=key_env) as client:
        judgement: dict[str, Any] = {
            "feedback_id": feedback_id,
            "label": label or None,
            "rating": _rating(rating),
            "scale": scale,
            "reward": reward,
            **{name: value for name, value in optional.items() if value is not None},  # older services refuse these
        }
        if session is None:
            show(client.feedback(str(decision_id), **judgement), as_json=as_json)
        else:
            is_empty = all(judgement[name] is None for name in ("label", "rating", "reward")) and event is None
            show(client.end_session(session, **({} if is_empty else judgement)), as_json=as_json)


def _rating(text: str | None) -> bool | float | None:
    if text is None or text.lower() in ("true", "false"):
        return None if text is None else text.lower() == "true"
    try:
        return float(text)
    except ValueError as error:
        raise InvalidInput(f"{text!r} is not a rating", field="rating", remedy="use true, false or a number") from error

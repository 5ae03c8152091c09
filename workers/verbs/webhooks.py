"""Verb `webhooks test`: one event, sent now, and what the receiver said."""

import time
import uuid
from typing import Annotated

import typer

from ragbandit.router.cli.console import ConfigOption, console
from ragbandit.router.config import loading as configuration
from ragbandit.router.storage.webhook_deliveries import Delivery
from ragbandit.shared.errors import InvalidInput
from ragbandit.workers.webhooks.delivery import Webhook
from ragbandit.workers.webhooks.events import event_body


def send_test(
    name: Annotated[str, typer.Argument(help="of the webhook, in the settings")], config: ConfigOption = None
) -> None:
    """Send an event of the type test to a webhook now, once; exit code 1 if the receiver does not take it."""
    settings = configuration.load(config).settings
    if name not in settings.webhooks:
        known = ", ".join(settings.webhooks) or "none, set webhooks"
        raise InvalidInput(f"no webhook is named {name!r}", field="name", remedy=f"known: {known}")
    key, now = f"test_{uuid.uuid4().hex}", time.time()
    body = event_body("test", at=now, data={"sentence": "this is a test", "remedy": "nothing to do"})
    test = Delivery(id=key, webhook=name, event="test", body=body, made_at=now, due_at=None)
    (attempt,) = Webhook(name, settings.webhooks[name]).send([test])
    if attempt.error is not None:
        console.print(f"not delivered: {attempt.error}", markup=False, highlight=False)
        raise typer.Exit(1)
    console.print(f"delivered as {key}", markup=False, highlight=False)

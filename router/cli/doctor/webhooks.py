"""Check of the webhooks: what waits for their receivers, and what was given up."""

from collections.abc import Sequence
from typing import Final

from ragbandit.router.cli.doctor.database import opened
from ragbandit.router.cli.doctor.findings import Finding, Installation, fine, warning
from ragbandit.router.storage.webhook_deliveries import WebhookDeliveries

_CHECK: Final = "webhooks"


def undelivered(installation: Installation) -> Sequence[Finding]:
    """Each webhook of which something waits or was given up."""
    settings = installation.settings
    if not settings.webhooks:
        return [fine(_CHECK, "none is set")]
    with opened(settings) as database:
        states = WebhookDeliveries(database).undelivered()
    return [
        warning(
            _CHECK,
            f"{name}: {state}",
            means="its receiver was not told of that much; what waits is tried again, what was given up is not",
            remedy=f"try it: ragbandit webhooks test {name}; a worker that learns must run",
        )
        for name, state in states.items()
    ] or [fine(_CHECK, "all is delivered")]

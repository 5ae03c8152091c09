"""Secrets of webhooks: from the environment, and checked without loading what sends."""

import base64
import binascii
import os
from typing import Final

from ragbandit.router.config.settings import Settings
from ragbandit.router.config.webhooks import WebhookSettings
from ragbandit.shared.errors import ConfigError

_PREFIX: Final = "whsec_"
#: bytes of a secret
_BYTES: Final = range(24, 65)


def secret_of(name: str, settings: WebhookSettings) -> bytes:
    """What the webhook is signed with, from the environment. Raises ConfigError, which does not show it."""
    value = os.environ.get(settings.secret_env, "").strip()
    try:
        secret = base64.b64decode(value.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if value.startswith(_PREFIX) and len(secret) in _BYTES:
        return secret
    fault = f"holds no {_PREFIX} and base64 of 24 to 64 bytes" if value else "is not set"
    raise ConfigError(
        f"the environment variable {settings.secret_env} {fault}",
        field=f"webhooks.{name}.secret_env",
        remedy=f'make a secret for both sides: echo "{_PREFIX}$(openssl rand -base64 32)"',
    )


def check_webhooks(settings: Settings) -> None:
    """Refuse webhooks whose secrets are not there. Raises ConfigError."""
    for name, webhook in settings.webhooks.items():
        secret_of(name, webhook)

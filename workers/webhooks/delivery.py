"""Delivery of webhooks, signed by the scheme of Standard Webhooks (standardwebhooks.com), at least once.

webhook-id: ID    webhook-timestamp: SECONDS    webhook-signature: v1,base64(hmac_sha256(ID.SECONDS.BODY))
"""

import asyncio
import base64
import hmac
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import httpx

import ragbandit
from ragbandit.router.config.webhooks import WebhookSettings
from ragbandit.router.storage.webhook_deliveries import Delivery, WebhookDeliveries
from ragbandit.shared.retries import retry_after_s
from ragbandit.workers.outages import StoreOutage
from ragbandit.workers.webhooks.secrets import secret_of

#: a receiver replies within that long, seconds
TIMEOUT_S: Final = 10.0
#: pauses after the tries that fail, seconds; after the try that follows the last one a delivery is given up
PAUSES_S: Final = (5.0, 30.0, 120.0, 600.0, 1800.0, 7200.0, 21_600.0, 43_200.0)
#: and so is one that is older, seconds
MOST_AGE_S: Final = 3 * 86_400.0
#: pauses are drawn up to that much longer, so that deliveries that failed together come back apart
_SPREAD: Final = 0.1
#: deliveries of one webhook at once; their claim lasts that long, seconds
AT_ONCE: Final = 8
CLAIM_S: Final = 3 * TIMEOUT_S
#: bytes of a reply's body that are read, and ignored
MAX_REPLY: Final = 65_536
#: how often it is looked for deliveries that are due, seconds
EVERY_S: Final = 2.0
_GONE: Final = 410


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """What came of sending once."""

    #: None: delivered
    error: str | None = None
    #: what the receiver asks for, seconds
    wait_s: float = 0.0
    #: the receiver wants nothing any more
    gone: bool = False


def signature(secret: bytes, *, key: str, timestamp: int, body: bytes) -> str:
    """The header webhook-signature. timestamp: seconds since the epoch."""
    signed = hmac.digest(secret, f"{key}.{timestamp}.".encode() + body, "sha256")
    return f"v1,{base64.b64encode(signed).decode()}"


class Webhook:
    """Sends the deliveries of one webhook. Not for several threads; several processes may."""

    def __init__(self, name: str, settings: WebhookSettings, *, clock: Callable[[], float] = time.time) -> None:
        """Raises ConfigError where the secret is not there."""
        self.name, self.settings, self.clock = name, settings, clock
        self._secret = secret_of(name, settings)
        self._outage = StoreOutage(
            action="webhook",
            failing=f"the webhook {name!r} does not take what is sent; trying again, with growing pauses. Try it: "
            f"ragbandit webhooks test {name}",
            restored=f"the webhook {name!r} takes what is sent again",
        )

    def deliver(self, deliveries: WebhookDeliveries) -> float | None:
        """Send what is due; 0.0 where there may be more. Raises StoreError."""
        claimed = deliveries.claim(self.name, now=self.clock(), for_s=CLAIM_S, limit=AT_ONCE)
        # A row whose last try has left no word was on its way when its process was killed.
        sent = [one for one in claimed if one.attempts <= len(PAUSES_S) + 1]
        results = dict(zip((one.id for one in sent), self.send(sent), strict=True))
        lost = Attempt(error="the process ended while it was sent for the last time", gone=True)
        for one in claimed:
            self._settle(one, results.get(one.id, lost), deliveries=deliveries)
        return 0.0 if len(claimed) == AT_ONCE else None

    def send(self, deliveries: Sequence[Delivery]) -> list[Attempt]:
        """Send these once, all at the same time; what came of each. Nothing is noted."""
        return asyncio.run(self._send(deliveries)) if deliveries else []

    def _settle(self, delivery: Delivery, attempt: Attempt, *, deliveries: WebhookDeliveries) -> None:
        now = self.clock()
        due_at = None if attempt.error is None or attempt.gone else self._next(delivery, attempt, now=now)
        deliveries.settle(delivery, error=attempt.error, due_at=due_at, now=now)
        if attempt.error is None:
            self._outage.ended()
        else:
            self._outage.failed(ConnectionError(f"{delivery.id}: {attempt.error}"))

    def _next(self, delivery: Delivery, attempt: Attempt, *, now: float) -> float | None:
        """When it is tried again; None: never."""
        if delivery.attempts > len(PAUSES_S) or now - delivery.made_at > MOST_AGE_S:
            return None
        pause = PAUSES_S[delivery.attempts - 1] * random.uniform(1.0, 1.0 + _SPREAD)  # noqa: S311 - no secret
        return now + max(pause, min(attempt.wait_s, PAUSES_S[-1]))

    async def _send(self, deliveries: Sequence[Delivery]) -> list[Attempt]:
        async with httpx.AsyncClient(follow_redirects=False, timeout=TIMEOUT_S) as client:
            return await asyncio.gather(*(self._post(client, one) for one in deliveries))

    async def _post(self, client: httpx.AsyncClient, delivery: Delivery) -> Attempt:
        body, now = delivery.body.encode(), int(self.clock())
        headers = {
            "content-type": "application/json",
            "user-agent": f"ragbandit/{ragbandit.__version__}",
            "webhook-id": delivery.id,
            "webhook-timestamp": str(now),
            "webhook-signature": signature(self._secret, key=delivery.id, timestamp=now, body=body),
        }
        try:
            # The whole of it: a reply that drips is none.
            async with asyncio.timeout(TIMEOUT_S):
                async with client.stream("POST", self.settings.url, content=body, headers=headers) as reply:
                    status, asked = reply.status_code, reply.headers.get("retry-after")
                    size = 0
                    async for part in reply.aiter_raw():  # a receiver may take a closed connection for a fault
                        if (size := size + len(part)) > MAX_REPLY:
                            break
        except TimeoutError:
            return Attempt(error=f"no reply within {TIMEOUT_S:g} s")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return Attempt(error=f"it cannot be reached ({type(error).__name__})")
        if 200 <= status < 300:
            return Attempt()
        why = ", and redirects are not followed" if 300 <= status < 400 else ""
        return Attempt(error=f"it replied {status}{why}", wait_s=retry_after_s(asked), gone=status == _GONE)

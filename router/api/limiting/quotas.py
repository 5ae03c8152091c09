"""Quotas: how many decisions and how much feedback a tenant has in a day (UTC), counted in Redis by all processes.

Redis, since a count in the store would be a row that every decision of a tenant waits for. What Redis forgets begins
again; without it each process counts for itself, as rates are.
"""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, Literal

from ragbandit.router.api.limiting.rate_limiter import RateLimiter
from ragbandit.router.config.settings import TenantSettings
from ragbandit.shared.errors import TooManyRequests

Counted = Literal["decisions", "feedback"]

_DAY_S: Final = 86_400


class QuotaSpent(TooManyRequests):
    """This tenant has had its quota of the day."""


class Quotas:
    """The quotas of one process. tenants: the setting."""

    def __init__(
        self, tenants: Mapping[str, TenantSettings], *, limiter: RateLimiter, clock: Callable[[], float] = time.time
    ) -> None:
        self._tenants = tenants
        self._limiter = limiter
        self._clock = clock

    async def fitting(self, what: Counted, *, tenant: str, amount: int = 1) -> int:
        """Count so many; how many of them are within the quota."""
        most = self._most(what, tenant=tenant)
        if most is None or amount == 0:
            return amount
        day = datetime.fromtimestamp(self._clock(), UTC).date().isoformat()
        counted = await self._limiter.add(f"{what}:{day}:{tenant}", amount, expiry_s=2 * _DAY_S)
        return max(0, min(amount, most - (counted - amount)))

    async def take(self, what: Counted, *, tenant: str, amount: int = 1) -> None:
        """Count so many, which are refused as a whole. Raises QuotaSpent."""
        if self._most(what, tenant=tenant) is None:
            return
        if (fitting := await self.fitting(what, tenant=tenant, amount=amount)) < amount:
            if fitting:  # a smaller batch may still come
                await self.fitting(what, tenant=tenant, amount=-amount)
            raise self.refusal(what, tenant=tenant)

    async def give_back(self, what: Counted, *, tenant: str) -> None:
        """Count one less: what was taken for it was refused."""
        await self.fitting(what, tenant=tenant, amount=-1)

    def refusal(self, what: Counted, *, tenant: str) -> QuotaSpent:
        """What a tenant is told beyond its quota."""
        name = f"tenants.{tenant if tenant in self._tenants else 'default'}.{what}_per_day"
        return QuotaSpent(
            f"the tenant {tenant!r} has had its {self._most(what, tenant=tenant)} {what} of the day (UTC)",
            field="tenant",
            remedy=f"wait until midnight UTC, or have the setting {name} raised",
            retry_after_s=_DAY_S - self._clock() % _DAY_S,
        )

    def _most(self, what: Counted, *, tenant: str) -> int | None:
        quota = self._tenants.get(tenant) or self._tenants.get("default")
        if quota is None:
            return None
        return quota.decisions_per_day if what == "decisions" else quota.feedback_per_day

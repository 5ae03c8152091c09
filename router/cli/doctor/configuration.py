"""Checks of the settings: what contradicts each other, and who may reach the service."""

from collections.abc import Sequence

from sqlalchemy import make_url

from ragbandit.router.cli.doctor.findings import Finding, Installation, fine, problem, warning
from ragbandit.router.serving.setup.bootstrap import FIRST_KEY, is_loopback
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.sql.database import Database


def contradictions(installation: Installation) -> Sequence[Finding]:
    """Settings that are each allowed, and together do not do what they seem to."""
    settings = installation.settings
    sqlite = make_url(settings.database).get_backend_name() == "sqlite"
    findings = []
    for wrong, text, means, remedy in (
        (
            sqlite and settings.redis_url is not None and not _of_this_host(settings.redis_url),
            "Redis is on another host, and the database is a SQLite file of this one",
            "workers on other hosts take jobs from this Redis whose decisions they do not find",
            "run every worker on this host, or set DATABASE_URL to a PostgreSQL database",
        ),
        (
            not sqlite and settings.redis_url is None,
            "the database is PostgreSQL, and no redis_url is set",
            "each host has a private Redis: workers of other hosts hear of new questions only by their sweep",
            "set REDIS_URL to one Redis for all hosts",
        ),
        (
            bool(settings.worker_arms) and settings.workers.answer == 0 and settings.redis_url is None,
            "workers.answer: 0, and arms are to be run by workers",
            "`ragbandit up` starts nobody who answers: /v1/answer replies 202 for ever",
            "set workers.answer above 0, or `run_by: caller` for every arm",
        ),
        (
            settings.budget.seconds > 900,
            f"budget.seconds: {settings.budget.seconds:g}",
            "a worker counts as dead while it runs an arm for longer than 900 s",
            "set budget.seconds to 900 at most",
        ),
    ):
        if wrong:
            findings.append(warning("settings", text, means=means, remedy=remedy))
    return findings or [fine("settings", "none contradict each other")]


def exposure(installation: Installation) -> Sequence[Finding]:
    """Whether a service that other machines reach asks for keys."""
    server = installation.settings.server
    hosts = [server.host] if server.admin_port is None else [server.host, server.admin_host]
    public = [host for host in hosts if not is_loopback(host)]
    if not public:
        return [fine("API keys", f"only this machine reaches {server.host}")]
    database = Database(installation.settings.database)
    try:
        keyed = bool(KeyStore(database).in_force(now=installation.clock()).unrevoked)
    finally:
        database.close()
    if not keyed:
        return [
            problem(
                "API keys",
                f"other machines reach {public[0] or 'every address'}, and there is no API key",
                means="whoever reaches the service may read every question and teach the policy, or it does not start",
                remedy=f"{FIRST_KEY}; or set server.host: 127.0.0.1",
            )
        ]
    if server.open_metrics:
        return [
            warning(
                "API keys",
                "server.open_metrics on an address that other machines reach",
                means="whoever reaches the port may read names of arms and tenants, and how much you serve",
                remedy="set server.admin_port, or give the scraper a key of the role reader",
            )
        ]
    return [fine("API keys", "keys are needed")]


def _of_this_host(redis_url: str) -> bool:
    url = make_url(redis_url)
    return url.drivername == "unix" or not url.host or is_loopback(url.host)

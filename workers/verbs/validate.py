"""Verb `validate`. Slow modules are imported only if the settings need them."""

import contextlib
import json
import logging
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import chain
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer
from rich.markup import escape

from ragbandit.router.cli.console import console, errors, print_json, say_error
from ragbandit.router.cli.options import ConfigOption, JsonOption
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.faults import faults_of
from ragbandit.router.config.finding import Finding
from ragbandit.router.config.named_sections import section_of
from ragbandit.router.config.server import ServerSettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import AUTO
from ragbandit.router.learning.monitoring.price import FREE, price_words
from ragbandit.router.operation.findings import (
    findings_of_disk,
    findings_of_report,
    findings_of_settings,
    findings_of_store,
    month_report,
    ping,
    run_check,
)
from ragbandit.router.policies.settings_check import check_policy
from ragbandit.router.serving.setup import requirements
from ragbandit.shared.additions import additions, section_parts
from ragbandit.shared.errors import ConfigError, StoreError
from ragbandit.shared.proxies import certificates, proxy_of
from ragbandit.workers.judge.reward_check import check_reward_check
from ragbandit.workers.setup.generators import check_worker_arms, names_in_use, needs_workers
from ragbandit.workers.setup.judge_checks import check_judge
from ragbandit.workers.setup.loading import check_generators, check_retrievers
from ragbandit.workers.setup.retrievers import named_kind

CONNECT_S: Final = 2.0


def validate(
    config: ConfigOption = None,
    every: Annotated[bool, typer.Option("--all", help="print every setting, also those with default values")] = False,
    settings_only: Annotated[
        bool, typer.Option("--settings-only", help="only check the settings; try no folder, port or server")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check the configuration and the packages that it needs, and try data_dir, port, Redis, database, model servers.

    Prints every fault of the settings (exit code 2). Without faults it prints the settings that are not the default,
    with their sources, and what reward.weight means; --json prints every setting. The last line is the verdict; exit
    code 1 if something that was tried does not work.
    """
    try:
        loaded = configuration.load(config)
        encoder = check_settings(loaded.settings)
    except ConfigError:
        for fault in _faults(config):
            say_error(fault)
        raise typer.Exit(2) from None
    rows = loaded.rows
    changed = [row for row in rows if every or row[2] != "default"]
    if as_json:
        print_json([{"key": key, "value": value, "source": source} for key, value, source in rows])
    else:
        for key, value, source in changed:
            console.say(f"{key}: {json.dumps(value, ensure_ascii=False)} ({source})")
        line = price_words(loaded.settings.reward) or FREE
        console.print(escape(f"reward.weight: {line}"), soft_wrap=True, highlight=False)
        if loaded.settings.encoder.model == AUTO:
            console.print(escape(f"encoder.model: auto is {encoder.in_words()}"), soft_wrap=True, highlight=False)
    findings, names = (_settings_findings(loaded.settings), []) if settings_only else _findings(loaded.settings)
    out = errors if as_json else console
    for finding in findings:
        out.print(f"[yellow]{finding.severity}[/yellow] {escape(finding.line)}", soft_wrap=True)
    problems = sum(finding.severity == "problem" for finding in findings)
    if problems:
        out.print(f"{problems} problem{'s' if problems > 1 else ''}", highlight=False)
        raise typer.Exit(1)
    if not as_json:
        count = sum(source != "default" for _, _, source in rows)
        counts = f"{count} of {len(rows)} settings are not the default (--all prints all)"
        line = f"ok: {counts}; tried: {', '.join(names) or 'nothing'}"
        console.print(line, soft_wrap=True, highlight=False)


def _faults(config: str | None) -> list[ConfigError]:
    """Every fault of the configuration. Hints are not logged, since each search for a further fault repeats them."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        return faults_of(config, check=check_settings)
    finally:
        logging.disable(before)


def check_settings(settings: Settings) -> requirements.EncoderChoice:
    """Raise ConfigError if no service can start with these settings. Connects to nothing. Returns the encoder."""
    check_worker_arms(settings)
    check_generators(settings, fetch=False)
    check_retrievers(settings)
    check_judge(settings.judge, fetch=False)
    check_policy(settings)
    check_reward_check(settings.reward)
    findings_of_additions(settings)
    requirements.check_packages(settings)
    encoder = _encoder(settings)
    encoder.check(weights=True)
    return encoder


def findings_of_additions(settings: Settings) -> list[Finding]:
    """Findings of additions in the settings. Raises ConfigError if no service can start."""
    keys = sorted({key for one in additions().values() for key in one.sections})
    at = {key: reduce(getattr, filter(None, key.split(".")), settings) for key in keys}
    return [*chain.from_iterable(part.findings(at[key]) for key in keys for part in section_parts(key))]


def _settings_findings(settings: Settings) -> list[Finding]:
    findings = [*findings_of_settings(settings)]
    if settings.workers.answer == 0 and settings.redis_url is None and needs_workers(settings):
        what = "0, so `ragbandit up` starts no answer worker: /v1/answer never gets an answer (202)"
        remedy = "set it above 0, or `run_by: caller` for every arm"
        findings.append(Finding("warning", "workers.answer", what, remedy))
    return findings + findings_of_additions(settings)


def _findings(settings: Settings) -> tuple[list[Finding], list[str]]:
    """Check the settings and try folder, port and servers. Returns (findings, names of the things tried)."""
    start = "`ragbandit up` and `ragbandit serve` do not start"
    attempts: dict[str, tuple[Callable[[], None], str]] = {
        "data_dir": (partial(requirements.check_data_dir, settings), start),
        "server.port": (partial(_try_port, settings.server), start),
    }
    if settings.redis_url is not None:
        attempts["Redis"] = (partial(ping, settings), "answers wait until it works")
    for field, url in _model_servers(settings).items():
        attempts[field] = (partial(_connect, url), "answers that need it fail until it is there")
    findings = _settings_findings(settings)
    for name, (attempt, consequence) in attempts.items():
        findings += run_check(name, attempt, consequence=consequence)
    findings += run_check("disk", lambda: findings_of_disk(settings))
    if not requirements.has_store(settings):
        refusal = requirements.refusal_to_begin(settings, make=True)
        if refusal is not None:
            findings.append(Finding("problem", "database", f"{refusal.message}; {start}", refusal.remedy or ""))
        return findings, [*attempts]
    from ragbandit.router.serving.setup.bootstrap import open_ledger

    def store_findings() -> Sequence[Finding]:
        with open_ledger(settings, label=settings.policy.label) as ledger:
            month = month_report(ledger.database, settings=settings, now=time.time())
            return findings_of_report(month) + findings_of_store(ledger.database, settings=settings, now=time.time())

    return findings + run_check("database", store_findings), [*attempts, "database"]


def _try_port(server: ServerSettings) -> None:
    """Raise ConfigError if the port is taken, except by a running service."""
    try:
        requirements.check_port(server)
    except ConfigError:
        from ragbandit.client import Client

        with Client(server.admin_url, timeout_s=CONNECT_S) as client:
            if not client.ready():
                raise


def _connect(url: str) -> None:
    """Connect to a server, or to the proxy through which it is asked. Raises OSError, and ConfigError."""
    if url.startswith("https:"):
        certificates()
    parts = urlsplit(proxy_of(url) or url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    socket.create_connection((parts.hostname or "", port), timeout=CONNECT_S).close()


def _model_servers(settings: Settings) -> dict[str, str]:
    named = settings.named_generators
    generators = {section_of("generator", name): named[name] for name in names_in_use(settings)[0]}
    if settings.judge.generator:
        generators["judge.generator"] = settings.judge.generator
    servers = {
        f"{section}.{generator.name}.base_url": generator.server.base_url
        for section, generator in generators.items()
        if generator.server is not None and generator.server.base_url
    }
    for name in names_in_use(settings)[1]:
        with named_kind(settings, name) as kind:
            servers |= {f"{section_of('retriever', name)}.{key}": url for key, url in kind.servers.items()}
    return servers


def _encoder(settings: Settings) -> requirements.EncoderChoice:
    """The encoder of a service on this store, or on a new store if this one cannot be read."""
    if settings.encoder.model == AUTO and requirements.has_store(settings):
        from ragbandit.router.serving.setup.bootstrap import choose_encoder

        with contextlib.suppress(StoreError):
            return choose_encoder(settings)
    return requirements.encoder_choices(settings.encoder)[0]

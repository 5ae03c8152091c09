"""Bootstrap: makes the databases, encoders, queues and learners of settings. Only this module chooses their classes."""

import contextlib
import importlib.util
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import cache

from sqlalchemy import inspect

from ragbandit.router.config.sections import EncoderSettings
from ragbandit.router.config.server import ServerSettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.config.sources import changed_settings
from ragbandit.router.encoders.base import AUTO, HASHING, Encoder
from ragbandit.router.encoders.distilbert import DistilBertEncoder
from ragbandit.router.encoders.feature_cache import CachingEncoder
from ragbandit.router.encoders.half_precision import HalfPrecisionEncoder, half_precision_hash
from ragbandit.router.encoders.hashing import HashingEncoder
from ragbandit.router.learning.examples import Joining
from ragbandit.router.learning.learner import Learner
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.queue.notifier import Jobs, MemoryJobs
from ragbandit.router.queue.outage import is_listening
from ragbandit.router.serving.setup.estimates import expected_dollars
from ragbandit.router.serving.setup.requirements import (
    EncoderChoice,
    can_write_database,
    encoder_choices,
    has_store,
    refusal_to_begin,
)
from ragbandit.router.storage.access.api_keys import KeysInForce, KeyStore
from ragbandit.router.storage.access.audit_log import last_entry, record
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.jobs.scores import JudgeSample
from ragbandit.router.storage.ledgers.inheritance import stored_origin
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.schema import check_schema
from ragbandit.shared.errors import ConfigError, QueueError, missing_package
from ragbandit.shared.files import private_socket
from ragbandit.shared.types import PolicyLabel

log = logging.getLogger("ragbandit.bootstrap")


def open_database(
    settings: Settings, *, make: bool = True, new_store: bool = False, writes: bool = True, check: bool = True
) -> Database:
    """The database of these settings. Raises StoreError, ConfigError.

    make: create a missing SQLite file. new_store: create it even if an earlier store left files there. writes: refuse a
    read-only database; if False, a read-only database is opened for reading. check: check the schema.
    """
    writable = can_write_database(settings, make=make, writes=writes)
    refusal = refusal_to_begin(settings, make=make, new_store=new_store)
    if refusal is not None and not has_store(settings):
        raise refusal
    database = Database(settings.database, make=make, read_only=not writable)
    try:
        if refusal is not None:
            with database.read() as connection:
                if not inspect(connection).get_table_names():
                    raise refusal
        if check:
            check_schema(database)
    except BaseException:
        database.close()
        raise
    return database


def make_decision_store(settings: Settings, database: Database) -> DecisionStore:
    return DecisionStore(
        database,
        label=PolicyLabel(settings.policy.label),
        text=settings.log.text,
        context=frozenset(settings.context),
        judge=judge_sample(settings),
        check=settings.reward.check is not None,
        expected=expected_dollars(settings.worker_arms, generators=settings.named_generators),
        turn_kinds=settings.conversation.limited,
    )


def make_encoder(settings: EncoderSettings, *, ledger: Ledger | None = None) -> Encoder:
    """Load the configured encoder; `auto` continues with the encoder of `ledger`. Raises ConfigError, StoreError."""
    known = None if ledger is None else encoder_hash_of(ledger)
    origin = None if ledger is None else stored_origin(ledger.database, label=ledger.label)
    options = encoder_choices(settings, origin=origin, known=known)
    full, choice = _load_fitting(settings, options, known=known)
    encoder = HalfPrecisionEncoder(full)
    fields = {"action": "encoder", "hash": encoder.hash[:12]}
    log.info("the encoder is %s", choice.in_words(), extra=fields)
    return CachingEncoder(encoder, entries=settings.cache_entries) if settings.cache_entries else encoder


def _load_fitting(
    settings: EncoderSettings, options: Sequence[EncoderChoice], *, known: str | None
) -> tuple[Encoder, EncoderChoice]:
    """Load the first encoder with the hash `known`, or the first one if none has it."""
    first: tuple[Encoder, EncoderChoice] | None = None
    for choice in options:
        try:
            attempt = _make_full_encoder(settings, choice, known=known), choice
        except ConfigError:
            if first is None or not choice.stand_in:
                raise
            continue
        if len(options) == 1 or known == half_precision_hash(attempt[0].hash):
            return attempt
        first = first or attempt
    assert first is not None
    return first


def encoder_of(settings: Settings) -> Encoder:
    """Load the configured encoder; `auto` continues with an existing store's. Raises ConfigError, StoreError."""
    if not has_store(settings):
        return make_encoder(settings.encoder)
    with open_ledger(settings, label=settings.policy.label) as ledger:
        return make_encoder(settings.encoder, ledger=ledger)


def choose_encoder(settings: Settings) -> EncoderChoice:
    """The encoder of a service with these settings; opens the store only for `auto`. Raises StoreError."""
    if settings.encoder.model != AUTO:
        return encoder_choices(settings.encoder)[0]
    with open_ledger(settings, label=settings.policy.label) as ledger:
        origin = stored_origin(ledger.database, label=ledger.label)
        return encoder_choices(settings.encoder, origin=origin, known=encoder_hash_of(ledger))[0]


def encoder_hash_of(ledger: Ledger) -> str | None:
    """Hash of the encoder of the ledger, else of its newest decision; None without decisions. Raises StoreError."""
    registered = ledger.policy_row()
    return (registered["encoder_hash"] if registered else "") or ledger.newest_encoder_hash()


def _make_full_encoder(settings: EncoderSettings, choice: EncoderChoice, *, known: str | None) -> Encoder:
    if choice.model == HASHING:
        return HashingEncoder(dimension=settings.dimension)
    choice.check()
    return DistilBertEncoder(
        choice.model,
        precision=settings.precision,
        device=settings.device,
        stand_in=choice.stand_in,
        threads=settings.threads,
        max_tokens=settings.max_tokens,
        dimension=settings.dimension,
        max_batch=settings.max_batch,
        known=known,
    )


def judge_sample(settings: Settings) -> JudgeSample | None:
    chosen = settings.judge
    if chosen.generator is None or chosen.share == chosen.first == 0:
        return None
    return JudgeSample(share=chosen.share, first=chosen.first, max_waiting=chosen.max_waiting)


def make_jobs(settings: Settings) -> Jobs:
    """The configured Redis, reachable or not. Raises ConfigError if redis_url is set and packages are missing."""
    expected = settings.redis_url is not None or is_listening(private_socket(settings.data_dir))
    if not expected:
        late = "/v1/answer waits until one is; the learner finds feedback by polling the database"
        log.info("no Redis is running: %s", late, extra={"action": "jobs"})
    missing = [name for name in ("redis", "rq") if importlib.util.find_spec(name) is None]
    if missing:
        if settings.redis_url is not None:
            raise missing_package(missing[0], extra="service", field="redis_url")
        return MemoryJobs(broken=True)
    from ragbandit.router.queue.jobs import RedisJobs, connect_redis

    return RedisJobs(connect_redis(settings.redis, timeout_s=1.0), expected=expected)


def make_learner(
    settings: Settings,
    ledger: Ledger,
    *,
    jobs: "Jobs | None" = None,
    files: SnapshotFiles | None = None,
    clock: Callable[[], float] | None = None,
) -> Learner:
    """The learner of a ledger. jobs: announces new snapshots to routers; None for no announcements.

    files: the files of a router that loads the snapshots in this process
    """

    def announce(_info: object) -> None:
        with contextlib.suppress(QueueError):  # logged once per outage; routers also poll for snapshots
            if jobs is not None:
                jobs.publish("snapshot")

    return Learner(
        ledger,
        files=files or SnapshotFiles(settings.snapshot_root),
        policy=settings.policy_definition,
        joining=Joining(settings.learning, reward=settings.reward, has_texts=settings.log.text != "none"),
        announce=announce,
        clock=clock,
    )


@contextlib.contextmanager
def open_ledger(settings: Settings, *, label: str) -> Iterator[Ledger]:
    """A ledger in the store of these settings, which may be read-only. Raises StoreError."""
    with contextlib.closing(open_database(settings, make=False, writes=False)) as database:
        yield Ledger(database, label=PolicyLabel(label))


@cache
def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach this address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may have any address
        return False


def is_open(server: ServerSettings, *, keys: KeysInForce) -> bool:
    """Whether requests need no key. False if a key exists that is not revoked (even an expired one), or if a proxy
    signs people in. Otherwise True if the setting `open` is true, or if the host is a loopback address and no key was
    ever made.
    """
    if keys.unrevoked or server.trusted_header is not None:
        return False
    return server.open or (is_loopback(server.host) and not keys.ever)


def check_exposure(settings: Settings, *, now: float) -> None:
    """Refuse a service that other machines can reach without keys or sign-in. Raises ConfigError, StoreError."""
    server = settings.server
    hosts = {"server.host": server.host}
    if server.admin_port is not None:
        hosts["server.admin_host"] = server.admin_host
    exposed = {field: host for field, host in hosts.items() if not is_loopback(host)}
    if not exposed or server.open or server.trusted_header is not None:
        return
    field, host = next(iter(exposed.items()))
    if has_store(settings):
        with contextlib.closing(open_database(settings, make=False)) as database:
            if KeyStore(database).in_force(now=now).unrevoked:
                return
    harm = "everyone who can reach it could read every question and teach the policy"
    message = f"the service would listen on {host or 'every address'} without API keys; {harm}"
    first_key = "`ragbandit keys create --role admin --name NAME`"
    remedy = f"make a key first: {first_key}; or listen on 127.0.0.1. See docs/security.md"
    raise ConfigError(message, field=field, remedy=remedy)


CONFIG_USED = "config.use"


def record_config(database: Database, settings: Settings, *, actor: str | None = None) -> None:
    """Record the settings in the audit log, unless this host's service used the same ones last. Raises StoreError."""
    host = socket.gethostname()
    facts: dict[str, object] = {"settings": changed_settings(settings)}
    target = f"host:{host}"
    with database.read() as connection:
        last = last_entry(connection, action=CONFIG_USED, target=target)
    if last is not None and last.facts == facts:
        return
    with database.write() as connection:
        record(connection, actor=actor or f"process:serve@{host}", action=CONFIG_USED, target=target, facts=facts)

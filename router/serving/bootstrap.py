"""Bootstrap: from settings to databases, encoders, queues and learners. Only this module picks concrete classes."""

import contextlib
import importlib.util
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.engine import make_url

from ragbandit.router.config.settings import EncoderSettings, ServerSettings, Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.encoders.distilbert import DistilBertEncoder
from ragbandit.router.encoders.hashing import HashingEncoder
from ragbandit.router.encoders.weights import at_hand
from ragbandit.router.errors import ConfigError, QueueError, StoreError, missing_package
from ragbandit.router.jobs.queue import Jobs, RedisJobs, connect
from ragbandit.router.jobs.redis_server import redis_runs, redis_url
from ragbandit.router.learning.learner import Learner
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.storage.database import Database, check_schema
from ragbandit.router.storage.ledger import Ledger
from ragbandit.router.types import PolicyLabel

__all__ = [
    "check_packages",
    "check_port",
    "check_weights",
    "ledger_of",
    "make_encoder",
    "make_jobs",
    "make_learner",
    "open_database",
]

log = logging.getLogger("ragbandit.bootstrap")


#: packages of the extra "models" that an encoder with weights needs
_ENCODER_PACKAGES = ("torch", "transformers", "tokenizers", "huggingface_hub")


def check_packages(settings: Settings) -> None:
    """Refuse a database or an encoder whose package is not installed. Nothing is imported. Raises ConfigError."""
    url = make_url(settings.database)
    if url.get_backend_name() == "postgresql" and importlib.util.find_spec(url.get_driver_name()) is None:
        raise missing_package(url.get_driver_name(), extra="postgres", field="database_url")
    if settings.encoder.model != "hashing":
        for name in _ENCODER_PACKAGES:
            if importlib.util.find_spec(name) is None:
                raise missing_package(name, extra="models", field="encoder.model")


def check_port(server: ServerSettings) -> None:
    """Refuse an address that another process listens on, or that this machine does not have. Raises ConfigError."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise ConfigError(
            f"{server.host}:{server.port} cannot be used: {error.strerror}",
            field="server.port",
            remedy="choose another host or port, or stop what listens there",
        ) from error


def check_weights(settings: Settings) -> None:
    """Refuse an encoder whose weights are sure not to be found. Nothing is fetched or asked. Raises ConfigError."""
    if settings.encoder.model != "hashing":
        at_hand(settings.encoder.model, setting="encoder.model")


def open_database(settings: Settings) -> Database:
    """The database of these settings, its schema checked. Raises StoreError."""
    database = Database(settings.database)
    try:
        check_schema(database)
    except BaseException:
        database.close()
        raise
    return database


def make_encoder(settings: EncoderSettings) -> Encoder:
    """The configured encoder, loaded. Raises ConfigError if its weights cannot be had."""
    if settings.model == "hashing":
        return HashingEncoder(dimension=settings.dimension)
    return DistilBertEncoder(
        settings.model,
        precision=settings.precision,
        device=settings.device,
        threads=settings.threads,
        max_tokens=settings.max_tokens,
        dimension=settings.dimension,
        max_batch=settings.max_batch,
    )


def make_jobs(settings: Settings) -> RedisJobs:
    """The configured Redis, reachable or not; no caller waits for it longer than a second.

    A library that has no redis_url, and finds no private Redis of its data_dir, works without one: no warning.
    """
    expected = settings.redis_url is not None or redis_runs(settings)
    if not expected:
        log.info(
            "no Redis is running: /v1/answer waits until one is; the learner finds feedback by polling the database",
            extra={"action": "jobs"},
        )
    client = connect(redis_url(settings), timeout_s=1.0)
    return RedisJobs(client, expected=expected, max_queued=settings.workers.max_queued)


def make_learner(settings: Settings, *, database: Database, jobs: Jobs) -> Learner:
    """The learner of the configured ledger; it notifies the routers through `jobs`."""
    ledger = Ledger(database, label=PolicyLabel(settings.policy.label))

    def announce(_info: object) -> None:
        with contextlib.suppress(QueueError):  # logged once per outage; routers look for snapshots by themselves too
            jobs.publish("snapshot")

    return Learner(ledger, files=SnapshotFiles(settings.snapshot_root), settings=settings, announce=announce)


@contextlib.contextmanager
def ledger_of(settings: Settings, *, label: str) -> Iterator[Ledger]:
    """A ledger of the store of these settings. Raises StoreError if there is no store, or of another version."""
    url = make_url(settings.database)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        # Opening would make an empty one here and call it fine.
        raise StoreError(
            f"there is no database at {url.database}",
            field="data_dir",
            remedy="check data_dir; a service or `ragbandit import` makes the database",
        )
    database = open_database(settings)
    try:
        yield Ledger(database, label=PolicyLabel(label))
    finally:
        database.close()

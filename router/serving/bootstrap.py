"""The one place that picks concrete classes: from settings to databases, encoders, policies, queues and learners."""

import difflib
import logging

from ragbandit.router.config.settings import EncoderSettings, Settings
from ragbandit.router.encoders.distilbert import DistilBertEncoder, Encoder, HashingEncoder
from ragbandit.router.errors import ConfigError, QueueError
from ragbandit.router.jobs.queue import Jobs, RedisJobs, connect
from ragbandit.router.jobs.redis_server import redis_runs, redis_url
from ragbandit.router.learning.learner import Learner
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy
from ragbandit.router.policies.finetuned.table_classifier import TableClassifier
from ragbandit.router.storage.database import Database, check_schema
from ragbandit.router.storage.ledger import Ledger
from ragbandit.router.types import PolicyLabel

__all__ = ["check_fallback", "check_policy", "make_encoder", "make_jobs", "make_learner", "open_database"]

log = logging.getLogger("ragbandit.bootstrap")


def open_database(settings: Settings) -> Database:
    """The database of these settings, its schema checked. Raises StoreError."""
    database = Database(settings.database)
    try:
        check_schema(database)
    except BaseException:
        database.close()
        raise
    return database


#: params that name an arm for deciding; those for training are compared with the table when `fit` reads it
_ARM_PARAMS = ("arm", "first", "second", "below", "above", "fallback")


def check_policy(settings: Settings) -> None:
    """Refuse what cannot decide here: an unknown policy, wrong params, arms that are not there, no training for these.

    Raises ConfigError.
    """
    check_fallback(settings)
    policy = make_policy(settings.policy.name, params=settings.policy.params)
    _check_params(policy, settings=settings, at="policy.params")
    inner = getattr(policy, "inner", None)  # of a policy that wraps another one
    if inner is not None:
        _check_params(inner, settings=settings, at="policy.params.params")


def check_fallback(settings: Settings) -> None:
    """Refuse a fallback that is no arm. Raises ConfigError."""
    fallback = settings.policy.fallback
    if fallback is None or fallback in settings.arms:
        return
    alike = difflib.get_close_matches(fallback, settings.arms, n=1)
    raise ConfigError(
        f"{fallback!r} is not among the arms {sorted(settings.arms)}",
        field="policy.fallback",
        # Not to be named as the remedy: the arm's own name may be the wrong one.
        remedy=f"is it the arm {alike[0]!r}? Correct one of the two" if alike else "name one of them, or leave it out",
    )


def _check_params(policy: Policy, *, settings: Settings, at: str) -> None:
    for name in _ARM_PARAMS:
        arm = policy.params.get(name)
        if arm is not None and arm not in settings.arms:
            raise ConfigError(
                f"{arm!r} is not among the arms", field=f"{at}.{name}", remedy=f"use one of {sorted(settings.arms)}"
            )
    if isinstance(policy, TableClassifier):
        _check_training(policy, settings=settings, at=at)


def _check_training(policy: TableClassifier, *, settings: Settings, at: str) -> None:
    """It chooses among the arms of its table alone; it may know more arms than are offered."""
    retrain = f"ragbandit train --policy {policy.algorithm} --table T.jsonl --out FOLDER"
    if policy.params.get("trained") is None:
        raise ConfigError(f"{policy.algorithm} has not been trained", field=f"{at}.trained", remedy=retrain)
    unknown = sorted(set(settings.arms) - set(policy.trained_arms))
    if unknown:
        fault = "all arms would be alike" if len(unknown) == len(settings.arms) else "it would never choose them"
        raise ConfigError(
            f"trained on {sorted(policy.trained_arms)}, and does not know the configured arms {unknown}: {fault}",
            field=f"{at}.trained",
            remedy=f"give the arms the table's names, take those out, or train on a table that has them: {retrain}",
        )


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

    A library that nobody has given a Redis, and that finds none of its folder, does without: that is no alarm.
    """
    wanted = settings.redis_url is not None or redis_runs(settings)
    if not wanted:
        log.info("no Redis here: workers and learner find what there is to do by their sweep", extra={"action": "jobs"})
    client = connect(redis_url(settings), timeout_s=1.0)
    return RedisJobs(client, alarm=logging.WARNING if wanted else logging.DEBUG)


def make_learner(settings: Settings, *, database: Database, jobs: Jobs) -> Learner:
    """The learner of the configured ledger; it tells the routers through `jobs`."""
    ledger = Ledger(database, label=PolicyLabel(settings.policy.label))

    def announce(info: object) -> None:
        try:
            jobs.tell("snapshot")
        except QueueError as error:
            facts = {"action": "announce", "reason": str(error), "info": str(info)}
            log.log(jobs.alarm, "snapshot not announced", extra=facts)

    return Learner(ledger, files=SnapshotFiles(settings.snapshot_root), settings=settings, announce=announce)

"""Verbs `serve` (only the HTTP service), `worker` (one worker process) and `up` (everything on one machine)."""

import contextlib
import gc
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ragbandit.router.cli.console import console, errors
from ragbandit.router.cli.options import ConfigOption, HostOption, PortOption, listen_on
from ragbandit.router.cli.progress import show_progress
from ragbandit.router.cli.store import NewStoreOption
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import AUTO
from ragbandit.router.operation.findings import ping
from ragbandit.router.policies.settings_check import check_policy
from ragbandit.router.queue.jobs import connect_redis
from ragbandit.router.queue.presence import make_card, start_presence
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import check_exposure, choose_encoder, open_database
from ragbandit.router.serving.setup.requirements import check_data_dir, check_packages, check_port, lock_store
from ragbandit.router.telemetry.logs import set_service_log
from ragbandit.shared.additions import offered_places
from ragbandit.shared.errors import ConfigError, QueueError, require_service
from ragbandit.shared.processes.this_process import die_with_parent
from ragbandit.shared.texts.formats import known_choices
from ragbandit.workers.judge.reward_check import check_reward_check
from ragbandit.workers.processes.inline import InlineAnswers
from ragbandit.workers.processes.supervisor import Supervisor
from ragbandit.workers.processes.watches import watch_store
from ragbandit.workers.processes.worker import QUEUES, run_worker
from ragbandit.workers.setup.generators import check_worker_arms, inline_arms
from ragbandit.workers.setup.judge_checks import check_judge
from ragbandit.workers.setup.loading import check_generators, check_indexes
from ragbandit.workers.verbs.validate import findings_of_additions


def serve(config: ConfigOption = None, host: HostOption = None, port: PortOption = None) -> None:
    """Run the HTTP service alone (Redis, workers and the learner run elsewhere)."""
    listen_on(host=host, port=port)
    settings = configuration.load(config).settings
    set_service_log(settings.log.format)
    check_worker_arms(settings)
    check_policy(settings)
    check_exposure(settings, now=time.time())
    check_port(settings.server)
    open_database(settings, make=False).close()
    die_with_parent()
    with lock_store(settings, at=settings.server.url) or contextlib.nullcontext():
        _serve(settings)


def _serve(settings: Settings) -> None:
    # Imported after the checks of `serve`, because the import takes a second.
    from ragbandit.router.api.app import create_app
    from ragbandit.router.api.server import make_server

    # `make_server` configures logging, so it is called before the router starts threads. The router is opened before
    # the server runs, so that a failure ends the process with one line instead of the server's traceback.
    app = create_app(lambda: router, begin=lambda tracing: inline.start(tracing) if inline else None)
    server = make_server(app, settings=settings.server)
    router = Router.open(settings)
    arms = inline_arms(settings)
    inline = InlineAnswers(router, arms=arms) if arms else None
    # Objects that stay are left out of garbage collection: with a model loaded, a full collection takes 80 ms.
    gc.collect()
    gc.freeze()
    # A service that runs every arm on its event loop serves the queue without threads.
    answers = {"answer": 0} if arms.keys() == settings.worker_arms.keys() else None
    presence = start_presence(connect_redis(settings.redis, timeout_s=1.0), make_card(role="service", threads=answers))
    with watch_store(router.database, end=partial(setattr, server, "should_exit", True)):
        with contextlib.suppress(KeyboardInterrupt):
            server.run()
        presence.close()
    if not server.started:
        raise typer.Exit(3)


def worker(
    *,
    config: ConfigOption = None,
    queue: Annotated[list[str] | None, typer.Option(help="answer, judge or learn; repeat it; default all")] = None,
    burst: Annotated[bool, typer.Option(help="end when the queues are empty")] = False,
    heartbeat: Annotated[Path | None, typer.Option(help="touch this file every 5 s once loaded, for a probe")] = None,
) -> None:
    """Take jobs: answer decisions, judge answers, learn from feedback."""
    unknown = [name for name in queue or () if name not in QUEUES]
    if unknown:
        message = f"unknown queue {unknown[0]!r}"
        raise ConfigError(message, field="queue", remedy=known_choices(QUEUES, given=unknown[0]))
    settings = configuration.load(config).settings
    set_service_log(settings.log.format)
    configured = [name for name in QUEUES if name != "judge" or settings.judge.generator is not None]
    run_worker(settings, queues=queue or configured, burst=burst, heartbeat=heartbeat)


def up(
    config: ConfigOption = None, host: HostOption = None, port: PortOption = None, new_store: NewStoreOption = False
) -> None:
    """Run everything on this machine: Redis, service, workers, learner. Ctrl-C stops all."""
    require_service()
    listen_on(host=host, port=port)
    loaded = configuration.load(config)
    settings = loaded.settings
    set_service_log(settings.log.format)
    check_packages(settings)
    check_data_dir(settings)
    check_worker_arms(settings)
    check_policy(settings)
    check_judge(settings.judge, fetch=True)
    check_reward_check(settings.reward)
    findings_of_additions(settings)
    if settings.worker_arms and settings.workers.answer:
        # Errors that would end every worker are reported here instead of in the workers' logs.
        check_indexes(settings)
        check_generators(settings, fetch=True)
    database = open_database(settings, new_store=new_store)
    database.close()
    encoder = choose_encoder(settings)
    encoder.check()
    if settings.encoder.model == AUTO:
        console.print(escape(f"The encoder is {encoder.in_words()}."), soft_wrap=True, highlight=False)
    check_exposure(settings, now=time.time())
    if settings.redis_url is not None:
        try:
            ping(settings)
        except QueueError as error:  # only a warning: without Redis answers are late, but nothing is lost
            errors.print(f"[yellow]warning[/yellow] {escape(str(error))}", soft_wrap=True, highlight=False)
    supervisor, url = Supervisor(loaded, database=database), settings.server.url
    try:
        supervisor.start()
        with show_progress(console) as progress:
            progress("starting (the first time weights are fetched and converted)", 0, 0)
            supervisor.wait_ready(timeout_s=600)
        console.print(escape(f"RagBandit answers at {url} (docs: {url}/docs). Ctrl-C stops it."))
        if settings.server.dashboard and "dashboard" in offered_places("doors"):
            console.print(escape(f"Dashboard: {settings.server.admin_url}/ui"))
        supervisor.run()
    finally:
        with contextlib.suppress(KeyboardInterrupt):
            supervisor.stop()
    console.print("stopped")

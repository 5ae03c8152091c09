"""Verb `up`: every process of this distribution on one machine."""

import contextlib
import time

from rich.markup import escape

from ragbandit.router.api.findings import ping
from ragbandit.router.cli.console import ConfigOption, HostOption, PortOption, console, errors, listen_on
from ragbandit.router.config import loading as configuration
from ragbandit.router.encoders.base import AUTO
from ragbandit.router.policies.checks import check_policy
from ragbandit.router.serving.setup.bootstrap import check_exposure, choose_encoder, open_database
from ragbandit.router.serving.setup.requirements import check_data_dir, check_packages
from ragbandit.router.telemetry.logs import set_log_format
from ragbandit.shared.errors import QueueError, require_service
from ragbandit.workers.checks.process import check_reward_check
from ragbandit.workers.judge.checks import check_judge
from ragbandit.workers.process import Supervisor
from ragbandit.workers.wiring.generators import check_arms
from ragbandit.workers.wiring.loading import check_generators, check_indexes


def up(config: ConfigOption = None, host: HostOption = None, port: PortOption = None) -> None:
    """Run everything on this machine: Redis, service, workers, learner. Ctrl-C stops all."""
    require_service()
    listen_on(host=host, port=port)
    loaded = configuration.load(config)
    settings = loaded.settings
    set_log_format(settings.log.format)
    check_packages(settings)
    check_data_dir(settings)
    check_arms(settings)
    check_policy(settings)
    check_judge(settings, fetch=True)
    check_reward_check(settings.reward)
    if settings.worker_arms and settings.workers.answer:
        # What would end every worker is said here, not in their logs.
        check_indexes(settings)
        check_generators(settings, fetch=True)
    open_database(settings).close()
    encoder = choose_encoder(settings)
    encoder.check()
    if settings.encoder.model == AUTO:
        console.print(escape(f"The encoder is {encoder.in_words()}."), soft_wrap=True, highlight=False)
    check_exposure(settings, now=time.time())
    if settings.redis_url is not None:
        try:
            ping(settings)
        except QueueError as error:  # no reason not to start: what needs it is late until it replies
            errors.print(f"[yellow]warning[/yellow] {escape(str(error))}", soft_wrap=True, highlight=False)
    supervisor = Supervisor(loaded)
    try:
        supervisor.start()
        with console.status("starting: the first time weights are fetched and converted"):
            supervisor.wait_ready(timeout_s=600)
        console.print(f"RagBandit answers at {supervisor.url} (docs: {supervisor.url}/docs). Ctrl-C stops it.")
        if settings.server.dashboard:
            console.print(f"Dashboard: {supervisor.admin_url}/ui")
        supervisor.run()
    finally:
        with contextlib.suppress(KeyboardInterrupt):
            supervisor.stop()
    console.print("stopped")

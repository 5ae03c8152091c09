"""Verb `serve`: the HTTP service alone."""

import contextlib
import time

import typer

from ragbandit.router.cli.console import ConfigOption, HostOption, PortOption, listen_on
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.router.policies.checks import check_policy
from ragbandit.router.queue.jobs import connect
from ragbandit.router.queue.presence import Presence, card_of
from ragbandit.router.queue.redis_server import redis_url
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import check_exposure
from ragbandit.router.serving.setup.requirements import (
    check_database_file,
    check_port,
    hold_store,
    narrow_data_dir,
)
from ragbandit.router.telemetry.logs import set_log_format
from ragbandit.shared.child_process import die_with_parent, keep_what_is_loaded
from ragbandit.workers.wiring.generators import check_arms


def serve(config: ConfigOption = None, host: HostOption = None, port: PortOption = None) -> None:
    """Run the HTTP service alone (Redis, workers and the learner run elsewhere)."""
    listen_on(host=host, port=port)
    settings = configuration.load(config).settings
    set_log_format(settings.log.format)
    check_arms(settings)
    check_policy(settings)
    check_exposure(settings, now=time.time())
    check_port(settings.server)
    check_database_file(settings, make=True)
    die_with_parent()
    at = f"http://{settings.server.host}:{settings.server.port}"
    with hold_store(settings, at=at) or contextlib.nullcontext():
        _serve(settings)


def _serve(settings: Settings) -> None:
    from ragbandit.router.api.app import create_app  # after what refuses a start, since it takes a second to load
    from ragbandit.router.api.server import make_server

    # A failure to open must end the process with our one line, not with a server's traceback.
    router = Router.open(settings)
    narrow_data_dir(settings)
    server = make_server(create_app(lambda: router), settings=settings.server)
    keep_what_is_loaded()
    card = card_of(role="service")
    presence = Presence(client=connect(redis_url(settings), timeout_s=1.0), card=card).start()
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    presence.close()
    if not server.started:
        raise typer.Exit(3)

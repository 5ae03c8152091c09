"""What `serve` runs: the HTTP service."""

import contextlib
import logging
import signal
import threading
import time
from functools import partial
from pathlib import Path

import typer

from ragbandit.router.api.app import create_app
from ragbandit.router.api.server import make_server
from ragbandit.router.config import loading as configuration
from ragbandit.router.policies.checks import check_policy
from ragbandit.router.queue.jobs import connect
from ragbandit.router.queue.presence import Presence, card_of
from ragbandit.router.queue.redis_server import redis_url
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.config_record import record_config
from ragbandit.router.serving.setup.data_dir import check_database_file, hold_store, narrow_data_dir
from ragbandit.router.serving.setup.exposure import check_exposure
from ragbandit.router.serving.setup.requirements import check_port, check_sign_in
from ragbandit.router.telemetry.logs import set_log_format
from ragbandit.shared.child_process import die_with_parent, keep_what_is_loaded
from ragbandit.shared.errors import RagBanditError
from ragbandit.workers.wiring.arms import check_arms
from ragbandit.workers.wiring.search import CorpusSearch

log = logging.getLogger("ragbandit.cli")


def run_service(config: str | None) -> None:
    """Be the service until SIGTERM."""
    loaded = configuration.load(config)
    settings = loaded.settings
    set_log_format(settings.log.format)
    check_arms(settings)
    check_policy(settings)
    check_exposure(settings, now=time.time())
    check_port(settings.server)
    check_sign_in(settings.server)
    check_database_file(settings, make=True)
    die_with_parent()
    at = f"http://{settings.server.host}:{settings.server.port}"
    with hold_store(settings, at=at) or contextlib.nullcontext():
        _run_router(loaded)


def _run_router(loaded: configuration.LoadedSettings) -> None:
    settings = loaded.settings
    # A failure to open must end the process with our one line, not with a server's traceback.
    router = Router.open(settings)
    narrow_data_dir(settings)
    # The file that was read, so that one that has gone since is missed; in a thread, since a signal's handler
    # would hold up every request.
    take_over = partial(_take_over_arms, router, config=loaded.file)
    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=take_over, daemon=True).start())
    app = create_app(lambda: router, corpus=CorpusSearch(settings))
    server = make_server(app, settings=settings.server)
    keep_what_is_loaded()
    presence = _presence(router)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    presence.close()
    if not server.started:
        raise typer.Exit(3)


def _presence(router: Router) -> Presence:
    card = card_of(role="service", encoder=router.service.encoder.hash)
    return Presence(client=connect(redis_url(router.settings), timeout_s=1.0), card=card).start()


def _take_over_arms(router: Router, *, config: Path | None) -> None:
    """Read the arms again and offer them; a configuration that cannot be used changes nothing."""
    try:
        settings = configuration.load(config).settings
        check_arms(settings)
        router.offer(settings.arms)
        record_config(router.database, router.settings)
    except RagBanditError as error:
        log.error(
            "the new configuration cannot be used; the arms stay as they were",
            extra={"action": "offer", "reason": str(error)},
        )

"""What `serve` runs: one process of the service, or several that share a port and an encoder process."""

import contextlib
import logging
import signal
import threading
import time
from functools import partial
from pathlib import Path

import typer

from ragbandit.router.config import loading as configuration
from ragbandit.router.policies.checks import check_policy
from ragbandit.router.queue.jobs import connect
from ragbandit.router.queue.presence import Presence, card_of
from ragbandit.router.queue.redis_server import redis_url
from ragbandit.router.serving.processes.encoder_process import RemoteEncoder
from ragbandit.router.serving.processes.process_group import run_encoder, run_processes
from ragbandit.router.serving.processes.service_process import ServiceProcess, shared_port
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
    """Be what the environment says: the service, one of its routers, or their encoder process; until SIGTERM."""
    loaded = configuration.load(config)
    settings = loaded.settings
    set_log_format(settings.log.format)
    check_arms(settings)
    check_policy(settings)
    process = ServiceProcess.of_environment()
    if process is None:  # the others' port is held for them
        check_exposure(settings, now=time.time())
        check_port(settings.server)
        check_sign_in(settings.server)
        check_database_file(settings, make=True)
    die_with_parent()
    at = f"http://{settings.server.host}:{settings.server.port}"
    with (None if process else hold_store(settings, at=at)) or contextlib.nullcontext():
        if process is None and settings.server.processes > 1:
            arguments = [] if config is None else ["--config", config]
            raise typer.Exit(run_processes(settings, arguments=arguments))
        if process is not None and process.kind == "encoder":
            run_encoder(settings, place=process)
        else:
            _run_router(loaded, process=process)


def _run_router(loaded: configuration.LoadedSettings, *, process: ServiceProcess | None) -> None:
    # Here, since neither the encoder process nor the parent of several routers has a use for the HTTP service.
    from ragbandit.router.api.app import create_app
    from ragbandit.router.api.http_server.server import make_server

    settings = loaded.settings
    # A failure to open must end the process with our one line, not with a server's traceback.
    router = Router.open(settings, encoder=_shared_encoder(process))
    narrow_data_dir(settings)
    # The file that was read, so that one that has gone since is missed; in a thread, since a signal's handler
    # would hold up every request.
    take_over = partial(_take_over_arms, router, config=loaded.file)
    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=take_over, daemon=True).start())
    served = settings.server
    if process is not None:
        served = served.model_copy(update={"admin_port": process.admin_port})
    app = create_app(lambda: router, process=process, corpus=CorpusSearch(settings))
    server = make_server(app, settings=served, shared=process is not None)
    sockets = None if process is None else [shared_port(settings.server.host, process.port)]
    keep_what_is_loaded()
    presence = _presence(router)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=sockets)
    presence.close()
    if not server.started:
        raise typer.Exit(3)


def _presence(router: Router) -> Presence:
    card = card_of(role="service", encoder=router.service.encoder.hash)
    return Presence(client=connect(redis_url(router.settings), timeout_s=1.0), card=card).start()


def _shared_encoder(process: ServiceProcess | None) -> RemoteEncoder | None:
    """The encoder of the encoder process, which is there before the routers; None: every process has its own."""
    if process is None or not process.shared_encoder:
        return None
    return RemoteEncoder(process.encoder_socket, wait_s=60.0)


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

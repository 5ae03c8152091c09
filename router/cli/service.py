"""Verbs `serve` and `migrate`. The command's root is `ragbandit.workers.cli`, which knows the arms."""

import contextlib
import logging
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragbandit.router.cli.console import (
    ConfigOption,
    HostOption,
    JsonOption,
    PortOption,
    console,
    failing_well,
    listen_on,
    print_json,
)
from ragbandit.router.errors import RagBanditError

if TYPE_CHECKING:
    from ragbandit.router.cli.validate import Check
    from ragbandit.router.jobs.presence import Presence
    from ragbandit.router.serving.processes.encoder_process import RemoteEncoder
    from ragbandit.router.serving.processes.service_process import ServiceProcess
    from ragbandit.router.serving.router import Router

__all__ = ["add_service", "add_verbs"]

log = logging.getLogger("ragbandit.cli")

PreOption = Annotated[
    bool, typer.Option("--pre", help="Only what the processes of the release before survive: before a rolling upgrade.")
]
WaitOption = Annotated[
    float | None,
    typer.Option(min=0, help="Change nothing: wait so many seconds until somebody else has brought it there."),
]


def add_verbs(app: typer.Typer, *, check: "Check", check_more: "Check" = lambda _: None) -> None:
    """Put the verbs of a running service and its store on a command, and `validate` (see there for `check_more`)."""
    from ragbandit.router.cli.archive import add_archive
    from ragbandit.router.cli.audit import add_audit
    from ragbandit.router.cli.backup import add_backup
    from ragbandit.router.cli.doctor import add_doctor
    from ragbandit.router.cli.erase import add_erase
    from ragbandit.router.cli.explain import add_explain
    from ragbandit.router.cli.inspect import add_facts
    from ragbandit.router.cli.keys import add_keys
    from ragbandit.router.cli.policy import add_policy
    from ragbandit.router.cli.remote import add_calls
    from ragbandit.router.cli.retire import add_retire
    from ragbandit.router.cli.sources import add_sources
    from ragbandit.router.cli.top import add_top
    from ragbandit.router.cli.validate import add_validate

    add_service(app, check=check)
    add_validate(app, check=check, check_more=check_more)
    add_calls(app)
    add_facts(app)
    add_explain(app)
    add_top(app)
    add_sources(app)
    add_archive(app)
    add_retire(app)
    add_erase(app)
    add_doctor(app)
    add_backup(app)
    add_keys(app)
    add_policy(app)
    add_audit(app)


def add_service(app: typer.Typer, *, check: "Check") -> None:
    """Put `serve` and `migrate` on the command."""
    _add_serve(app, check=check)
    app.command(name="migrate")(_migrate)


def _add_serve(app: typer.Typer, *, check: "Check") -> None:
    @app.command()
    def serve(config: ConfigOption = None, host: HostOption = None, port: PortOption = None) -> None:
        """Run the HTTP service alone (Redis, workers and the learner run elsewhere). SIGHUP reads the arms again."""
        from ragbandit.router.config import loading as configuration
        from ragbandit.router.jobs.processes import die_with_parent, keep_what_is_loaded
        from ragbandit.router.policies.checks import check_policy
        from ragbandit.router.serving.processes.service_process import ServiceProcess, shared_port
        from ragbandit.router.serving.router import Router
        from ragbandit.router.serving.setup.data_dir import narrow_data_dir
        from ragbandit.router.serving.setup.exposure import check_exposure
        from ragbandit.router.serving.setup.requirements import check_port
        from ragbandit.router.telemetry.logs import set_log_format

        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # too early is no reason to die
        with failing_well():
            listen_on(host=host, port=port)
            loaded = configuration.load(config)
            settings = loaded.settings
            set_log_format(settings.log.format)
            check(settings)
            check_policy(settings)
            if ServiceProcess.of_environment() is None:  # it is held for the others
                check_exposure(settings, now=time.time())
                check_port(settings.server)
            die_with_parent()
            place = ServiceProcess.of_environment()
            if place is None and settings.server.processes > 1:
                from ragbandit.router.cli.service_processes import run_processes

                arguments = [] if config is None else ["--config", config]
                raise typer.Exit(run_processes(settings, arguments=arguments))
            if place is not None and place.kind == "encoder":
                from ragbandit.router.cli.service_processes import run_encoder

                run_encoder(settings, place=place)
                return
            # A failure to open must end the process with our one line, not with a server's traceback.
            router = Router.open(settings, encoder=_shared_encoder(place))
            narrow_data_dir(settings)
            # The file that was read, so that one that has gone since is missed; in a thread, since a signal's handler
            # would hold up every request.
            take_over = partial(_take_over_arms, router, config=loaded.file, check=check)
            signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=take_over, daemon=True).start())
            from ragbandit.router.api.app import create_app
            from ragbandit.router.api.http_server.server import make_server

            served = settings.server
            if place is not None:
                served = served.model_copy(update={"admin_port": place.admin_port})
            app_of_all = create_app(lambda: router, place=place)
            server = make_server(app_of_all, settings=served, shared=place is not None)
            sockets = None if place is None else [shared_port(settings.server.host, place.port)]
            keep_what_is_loaded()
            presence = _presence(router)
            with contextlib.suppress(KeyboardInterrupt):
                server.run(sockets=sockets)
            presence.close()
            if not server.started:
                raise typer.Exit(3)


def _presence(router: "Router") -> "Presence":
    from ragbandit.router.jobs.presence import Presence, card_of
    from ragbandit.router.jobs.queue import connect
    from ragbandit.router.jobs.redis_server import redis_url

    card = card_of(role="service", encoder=router.service.encoder.hash)
    return Presence(client=connect(redis_url(router.settings), timeout_s=1.0), card=card).start()


def _shared_encoder(place: "ServiceProcess | None") -> "RemoteEncoder | None":
    """The encoder of the encoder process, which is there before the routers; None: every process has its own."""
    from ragbandit.router.serving.processes.encoder_process import RemoteEncoder

    if place is None or not place.shared_encoder:
        return None
    return RemoteEncoder(place.encoder_socket, wait_s=60.0)


def _migrate(
    config: ConfigOption = None,
    pre: PreOption = False,
    wait: WaitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring the database to this version's schema."""
    from ragbandit.router.config import loading as configuration
    from ragbandit.router.serving.setup.data_dir import check_database_file
    from ragbandit.router.storage.sql.database import Database, migrate, wait_for_schema

    with failing_well():
        settings = configuration.load(config).settings
        check_database_file(settings, make=True)
        with contextlib.closing(Database(settings.database)) as database:
            revision = migrate(database, pre=pre) if wait is None else wait_for_schema(database, seconds=wait)
            url = database.url.render_as_string(hide_password=True)
        if as_json:
            print_json({"database": url, "revision": revision})
        else:
            console.print(f"{url} is at {revision}", soft_wrap=True)


def _take_over_arms(router: "Router", *, config: Path | None, check: "Check") -> None:
    """Read the arms again and offer them; a configuration that cannot be used changes nothing."""
    from ragbandit.router.config import loading as configuration
    from ragbandit.router.serving.setup.config_record import record_config

    try:
        settings = configuration.load(config).settings
        check(settings)
        router.offer(settings.arms)
        record_config(router.database, router.settings)
    except RagBanditError as error:
        log.error(
            "the new configuration cannot be used; the arms stay as they were",
            extra={"action": "offer", "reason": str(error)},
        )

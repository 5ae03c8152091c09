"""The router's verbs. `ragbandit.workers.cli` is the command's root and adds the verbs that need arms."""

import json
import logging
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import typer
from rich.markup import escape
from rich.table import Table

from ragbandit.router.cli.console import (
    ConfigOption,
    JsonOption,
    console,
    failing_well,
    print_json,
)
from ragbandit.router.cli.inspect import add_facts
from ragbandit.router.cli.remote import add_calls
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.router.errors import RagBanditError
from ragbandit.router.jobs.processes import die_with_parent
from ragbandit.router.policies.checks import check_policy
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.database import Database, migrate

__all__ = ["add_verbs"]


log = logging.getLogger("ragbandit.cli")

#: settings -> None, raises ConfigError: what the root knows to check and the router does not (arms, prompts)
Check = Callable[[Settings], None]


def add_verbs(app: typer.Typer, *, check: Check, check_more: Check = lambda _: None) -> None:
    """Put the router's verbs on the command. `check_more` is for `validate` alone: what no service needs."""
    _add_service(app, check=check, check_more=check_more)
    add_calls(app)
    add_facts(app)


def _add_service(app: typer.Typer, *, check: Check, check_more: Check) -> None:
    @app.command()
    def serve(config: ConfigOption = None) -> None:
        """Run the HTTP service alone (Redis, workers and the learner run elsewhere). SIGHUP reads the arms again."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # too early is no reason to die
        with failing_well():
            loaded = configuration.load(config)
            settings = loaded.settings
            check(settings)
            check_policy(settings)
            die_with_parent()
            import uvicorn

            from ragbandit.router.api.app import create_app

            # A failure to open must end the process with our one line, not with a server's traceback.
            router = Router.open(settings)
            # The file that was read, so that one that has gone since is missed; in a thread, since a signal's handler
            # would hold up every request.
            take_over = partial(_take_over_arms, router, config=loaded.file, check=check)
            signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=take_over, daemon=True).start())
            server = settings.server
            uvicorn.run(
                create_app(lambda: router), host=server.host, port=server.port, log_level="warning", access_log=False
            )

    @app.command(name="migrate")
    def migrate_(config: ConfigOption = None, as_json: JsonOption = False) -> None:
        """Bring the database to this version's schema."""
        with failing_well():
            database = Database(configuration.load(config).settings.database)
            revision, url = migrate(database), database.url.render_as_string(hide_password=True)
            database.close()
            if as_json:
                print_json({"database": url, "revision": revision})
            else:
                console.print(f"{url} is at {revision}", soft_wrap=True)

    @app.command()
    def validate(config: ConfigOption = None, as_json: JsonOption = False) -> None:
        """Check the configuration; print every setting with where it came from."""
        with failing_well():
            loaded = configuration.load(config)
            check(loaded.settings)
            check_more(loaded.settings)
            check_policy(loaded.settings)
            rows = configuration.effective(loaded)
            if as_json:
                print_json([{"key": k, "value": v, "source": s} for k, v, s in rows])
                return
            table = Table("setting", "value", "source")
            for key, value, source in rows:
                table.add_row(key, escape(json.dumps(value)), escape(source))
            console.print(table)


def _take_over_arms(router: Router, *, config: Path | None, check: Check) -> None:
    """Read the arms again and offer them; a configuration that cannot be used changes nothing."""
    try:
        settings = configuration.load(config).settings
        check(settings)
        router.offer(settings.arms)
    except RagBanditError as error:
        log.error(
            "the new configuration cannot be used; the arms stay as they were",
            extra={"action": "offer", "reason": str(error)},
        )

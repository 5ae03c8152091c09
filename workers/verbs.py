"""The verbs of `ragbandit` by section: what is loaded together when one of them runs."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from ragbandit.router.config.settings import Settings

__all__ = ["SECTIONS", "all_verbs"]


def all_verbs(app: typer.Typer) -> None:
    """Put the verbs of every section on a command. This imports all of the package but the model libraries."""
    for add in SECTIONS.values():
        add(app)


def _check_arms(settings: "Settings") -> None:
    """Refuse arms that no worker could make."""
    from ragbandit.workers.wiring.arms import check_arms

    check_arms(settings)


def _check_workers(settings: "Settings") -> None:
    """Refuse a generator and a judge that no worker could make, and prompts that no judge of `evaluate` could use."""
    from ragbandit.workers.judge.checks import check_judge
    from ragbandit.workers.wiring.generators import check_generator

    check_generator(settings, fetch=False)
    check_judge(settings, fetch=False)


def _add_service(app: typer.Typer) -> None:
    from ragbandit.router.cli.service import add_service

    add_service(app, check=_check_arms)


def _add_validate(app: typer.Typer) -> None:
    from ragbandit.router.cli.validate import add_validate

    add_validate(app, check=_check_arms, check_more=_check_workers)


def _add_calls(app: typer.Typer) -> None:
    from ragbandit.router.cli.remote import add_calls

    add_calls(app)


def _add_facts(app: typer.Typer) -> None:
    from ragbandit.router.cli.inspect import add_facts

    add_facts(app)


def _add_explain(app: typer.Typer) -> None:
    from ragbandit.router.cli.explain import add_explain

    add_explain(app)


def _add_policy(app: typer.Typer) -> None:
    from ragbandit.router.cli.policy import add_policy

    add_policy(app)


def _add_top(app: typer.Typer) -> None:
    from ragbandit.router.cli.top import add_top

    add_top(app)


def _add_sources(app: typer.Typer) -> None:
    from ragbandit.router.cli.sources import add_sources

    add_sources(app)


def _add_archive(app: typer.Typer) -> None:
    from ragbandit.router.cli.archive import add_archive

    add_archive(app)


def _add_retire(app: typer.Typer) -> None:
    from ragbandit.router.cli.retire import add_retire

    add_retire(app)


def _add_erase(app: typer.Typer) -> None:
    from ragbandit.router.cli.erase import add_erase

    add_erase(app)


def _add_backup(app: typer.Typer) -> None:
    from ragbandit.router.cli.backup import add_backup

    add_backup(app)


def _add_doctor(app: typer.Typer) -> None:
    from ragbandit.router.cli.doctor import add_doctor

    add_doctor(app)


def _add_keys(app: typer.Typer) -> None:
    from ragbandit.router.cli.keys import add_keys

    add_keys(app)


def _add_audit(app: typer.Typer) -> None:
    from ragbandit.router.cli.audit import add_audit

    add_audit(app)


def _add_offline(app: typer.Typer) -> None:
    from ragbandit.router.cli.offline.simulate import add_offline_verbs

    add_offline_verbs(app)


def _add_logs(app: typer.Typer) -> None:
    from ragbandit.router.cli.offline.logs import add_log_verbs

    add_log_verbs(app)


def _add_import_feedback(app: typer.Typer) -> None:
    from ragbandit.router.cli.import_feedback import add_import_feedback

    add_import_feedback(app)


def _add_replay(app: typer.Typer) -> None:
    from ragbandit.router.cli.offline.replay import add_replay_verb

    add_replay_verb(app)


def _add_evaluate(app: typer.Typer) -> None:
    from ragbandit.workers.evaluation.command import add_evaluate_verb

    add_evaluate_verb(app)


def _add_start(app: typer.Typer) -> None:
    from ragbandit.workers.start import add_start_verbs

    add_start_verbs(app)


def _add_index(app: typer.Typer) -> None:
    from ragbandit.workers.index import index

    app.add_typer(index, name="index")


#: section -> what puts its verbs on a command, importing only what they need
SECTIONS: Final[dict[str, Callable[[typer.Typer], None]]] = {
    "service": _add_service,
    "validate": _add_validate,
    "calls": _add_calls,
    "facts": _add_facts,
    "explain": _add_explain,
    "top": _add_top,
    "sources": _add_sources,
    "archive": _add_archive,
    "retire": _add_retire,
    "erase": _add_erase,
    "doctor": _add_doctor,
    "backup": _add_backup,
    "keys": _add_keys,
    "policy": _add_policy,
    "audit": _add_audit,
    "offline": _add_offline,
    "logs": _add_logs,
    "import-feedback": _add_import_feedback,
    "replay": _add_replay,
    "evaluate": _add_evaluate,
    "start": _add_start,
    "index": _add_index,
}

"""Verbs of `arms`: what happens to an arm outside this service."""

import time
from dataclasses import asdict
from typing import Annotated

import typer

from ragbandit.router.cli.access import actor
from ragbandit.router.cli.console import ConfigOption, JsonOption
from ragbandit.router.cli.facts import show
from ragbandit.router.cli.store import opened
from ragbandit.router.rollouts.verbs import check_reason
from ragbandit.router.storage.ledgers.arm_changes import declare_change
from ragbandit.shared.errors import NotFound
from ragbandit.shared.types import ArmName


def changed(
    name: Annotated[str, typer.Argument(metavar="NAME", help="the arm")],
    reason: Annotated[str, typer.Option("--reason", help="why, for the audit log")] = "by hand",
    label: Annotated[str | None, typer.Option(help="for this ledger alone, such as that of a version: main.v1")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Declare that an arm answers by other means from now on: another model, index or prompt under the same name.

    Every ledger resets the arm before learning the first decision made after this moment: its estimates stay, count
    for little, and the arm is tried again.
    """
    with opened(config, label=label) as (settings, ledger):
        if name not in settings.arms:
            remedy = f"one of: {', '.join(settings.arms)}"
            raise NotFound(f"{name!r:.80} is no arm of this configuration", field="name", remedy=remedy)
        check_reason(reason)
        alone = None if label is None else ledger.label
        change = declare_change(
            ledger.database, ArmName(name), actor=actor(), reason=reason, now=time.time(), label=alone
        )
        show(asdict(change), as_json=as_json)

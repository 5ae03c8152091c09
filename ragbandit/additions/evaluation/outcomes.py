"""Outcomes of a table, a log or the store, as rows from which a policy can learn."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from ragbandit.additions.evaluation.warm import WarmRows, check_warm_policy, warm_rows_of_log, warm_rows_of_table
from ragbandit.router.cli.console import errors
from ragbandit.router.cli.outcome_tables import left_out_lines, read_outcome_table
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.offline.estimation import Progress
from ragbandit.router.offline.logs import BadRow, form_of
from ragbandit.router.offline.replay import open_log
from ragbandit.router.offline.replay.parts import LeftOut
from ragbandit.router.policies import untrained_policy
from ragbandit.router.policies.algorithms.conservative import learner_of
from ragbandit.router.policies.base import Policy, TableTrained
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import encoder_of
from ragbandit.shared.json_lines import rereadable

#: `WarmRows.origin` of rows that were read from the store
STORE: Final = "store"


@dataclass(kw_only=True)
class OutcomeReader:
    """Reads outcomes of a table, a log or the store, and adds missing features of the configured encoder."""

    settings: Settings
    progress: Progress
    #: a router whose encoder is used; None if the configured encoder should be loaded
    router: Router | None = None

    def __post_init__(self) -> None:
        self.policy: Policy = learner_of(untrained_policy(self.settings.policy_definition))
        if not self.is_trained:
            check_warm_policy(self.policy, name=self.settings.policy.name)

    @property
    def is_trained(self) -> bool:
        """Whether the policy was trained on a table before, and is judged as it is."""
        return isinstance(self.policy, TableTrained) and bool(self.policy.trained_arms)

    @cached_property
    def encoder(self) -> Encoder:
        self.progress("loading the encoder", 0, 0)
        return encoder_of(self.settings) if self.router is None else self.router.encoder

    def read_table(self, path: Path, *, columns: Sequence[str] | None, skip_bad: bool) -> WarmRows:
        table, remarks = read_outcome_table(path, columns=columns, skip_bad=skip_bad, schema=self.settings.context)
        for remark in remarks:
            errors.say(remark)
        return warm_rows_of_table(
            table,
            source=str(path),
            settings=self.settings,
            encoder=self.encoder,
            now=time.time(),
            progress=self.progress,
        )

    def read_log(self, path: Path | None, *, skip_bad: bool) -> WarmRows:
        """The rows of a log. path: None to read the store."""
        skipped, left_out = list[BadRow](), LeftOut()
        with nullcontext() if path is None else rereadable(path) as readable:
            origin = STORE if readable is None else form_of(readable)
            opened_log = open_log(readable, config=self.settings, mixed_arms=True, skip_bad=skip_bad)
            rows, _ = opened_log.judged_rows(skipped=skipped, left_out=left_out, progress=self.progress)
        for remark in left_out_lines(skipped):
            errors.say(remark)
        if left_out.undrawn:
            errors.print(f"left out: {left_out.undrawn:,} decisions whose arm was not drawn", soft_wrap=True)
        return warm_rows_of_log(
            rows,
            source="the store" if path is None else str(path),
            origin=origin,
            settings=self.settings,
            encoder=self.encoder,
            needs_features="features" in self.policy.needs,
            progress=self.progress,
        )

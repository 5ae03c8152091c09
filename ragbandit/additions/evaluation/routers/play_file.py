"""Plays of policies in memory, and in a JSONL file if one is named."""

import dataclasses
import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from ragbandit.additions.evaluation.kept_lines import AppendOnlyFile, first_fault
from ragbandit.additions.evaluation.routers.play import PlayTask, PolicyPlay, Setup, read_play
from ragbandit.additions.evaluation.routers.routing_table import RoutingTable
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Json


def check_unused(file: Path) -> None:
    """Raises InvalidInput if the file has lines, so that an interrupted command does not begin again."""
    if file.is_file() and file.stat().st_size > 0:
        remedy = "give --resume to continue with its plays, or another file with --answers"
        raise InvalidInput("the file already has plays", field=str(file), remedy=remedy)


class _Task(BaseModel, strict=True):
    policy: str
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    fold: Annotated[int, Field(ge=0, lt=2**31)]


class _Line(BaseModel, strict=True):
    key: str
    task: _Task
    played: dict[str, Any]


class PlayFile:
    """A file of plays. A stored play is reused if its tables, rewards, encoder, policy, params and folds are equal.

    file: None to store plays only in memory. facts: policy -> its state before it learns. The state has the hashes of
    the policy's model, trained folder and counts. Raises InvalidInput for a file of another kind.
    """

    def __init__(self, file: Path | None, *, setup: Setup, facts: Mapping[str, Json]) -> None:
        self.plays: dict[PlayTask, PolicyPlay] = {}
        #: number of plays in the file that belong to another setup
        self.others = 0
        self._setup, self._facts = setup, facts
        self._lines = None if file is None else AppendOnlyFile(file)
        if self._lines is None:
            return
        self._tables = [digest(setup.train), digest(setup.test)]
        try:
            for number, entry in self._lines.read():
                self._read(number, entry)
        except BaseException:
            self._lines.close()
            raise

    def _read(self, number: int, entry: dict[str, object]) -> None:
        assert self._lines is not None
        try:
            line = _Line.model_validate(entry)
            task = PlayTask(policy=line.task.policy, seed=line.task.seed, fold=line.task.fold)
            is_known = task.policy in self._setup.policies and task.fold < self._setup.folds
            if is_known and line.key == self._key(task):
                self.plays[task] = read_play(line.played, task=task, setup=self._setup)
            else:
                self.others += 1
        except ValueError as error:
            why = first_fault(error) if isinstance(error, ValidationError) else str(error)
            raise self._lines.line_error(number, what="a play of a policy", why=why) from error

    def add(self, task: PlayTask, played: PolicyPlay) -> None:
        self.plays[task] = played
        if self._lines is not None:
            self._lines.add({"key": self._key(task), "task": dataclasses.asdict(task), "played": played.as_json()})

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()

    def _key(self, task: PlayTask) -> str:
        setup = self._setup
        policy = setup.policy.model_dump(mode="json", exclude={"name", "params", "label"})
        values = [self._tables, setup.folds, task.policy, setup.policies[task.policy], self._facts[task.policy], policy]
        values += ["stream"] if setup.is_stream else []
        return sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def digest(table: RoutingTable) -> str:
    """A hash of all that a policy may learn from the table."""
    hashed = sha256(json.dumps([table.measure, table.arms]).encode())
    for row in table.table.rows:
        hashed.update(json.dumps(dataclasses.asdict(row), sort_keys=True, default=str).encode("utf-8", "replace"))
    for one in table.rows:
        hashed.update(json.dumps([one.decision.arm, one.decision.encoder_hash, one.reward.value]).encode())
    return hashed.hexdigest()

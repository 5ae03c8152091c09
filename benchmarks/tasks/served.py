"""The same tasks by a service on SQLite: whether it does what a simulated pass does."""

import tempfile
from dataclasses import dataclass

import numpy as np

from benchmarks.tasks.passes import EPOCH, SECRET, TASK_S, Played, decision_id, settings_of
from benchmarks.tasks.worlds import ARMS, Questions
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.reporting.reading import ReportRows, ReportScope, read_log
from ragbandit.router.serving.router import Router
from ragbandit.shared.types import Query


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """What the service stored, compared with the pass."""

    tasks: int
    turns: int
    same_arm: int  #: tasks with the same arm
    pmf: float  #: largest difference between probabilities
    dollars: float  #: largest difference between the dollars of a task
    same_outcome: int  #: tasks with the same reported outcome, or without one in both


def agreement(played: Played, *, tasks: int, encoder: str | None, known: Questions) -> Agreement:
    """Serve the first tasks of the pass with `conversation.unit: task`, and compare what a report reads."""
    world = played.world
    rows = _served(played, tasks=tasks, encoder=encoder, known=known)
    order = [rows.arms.index(arm) for arm in ARMS]
    arm = np.array([ARMS.index(rows.arms[place]) for place in rows.arm])[::-1]
    quality = np.where(played.rows.reported, played.rows.solved, np.nan)[:tasks]
    return Agreement(
        tasks=len(arm),
        turns=sum(len(task.kind) for task in world.tasks[:tasks]),
        same_arm=int((arm == played.rows.arm[:tasks]).sum()),
        pmf=float(np.abs(rows.pmf[::-1][:, order] - played.rows.pmf[:tasks]).max()),
        dollars=float(np.abs(rows.costs["dollars"][::-1] - played.dollars[:tasks]).max()),
        same_outcome=int(np.isclose(rows.quality[::-1], quality, equal_nan=True).sum()),
    )


def _served(played: Played, *, tasks: int, encoder: str | None, known: Questions) -> ReportRows:
    world = played.world
    with tempfile.TemporaryDirectory() as folder:
        encoders = {} if encoder is None else {"encoder": {"model": encoder}}
        settings = settings_of(world, unit="task", data_dir=folder, conversation={"unit": "task"}, **encoders)
        with Router.open(settings, jobs=MemoryJobs()) as router:
            router.service.secret = SECRET
            now = EPOCH
            router.service.clock = lambda: now
            for number, task in enumerate(world.tasks[:tasks]):
                now = EPOCH + TASK_S * number
                with router.task(f"task-{number}") as one:
                    arms = []
                    for turn, question in enumerate(task.question.tolist()):
                        now = EPOCH + TASK_S * number + float(task.at[turn])
                        query = Query(text=known.texts[question], id=decision_id(world, number, turn))
                        decision = one.route(query)
                        arms.append(ARMS.index(decision.arm))
                        spent = float(task.dollars(arms)[-1])
                        router.outcome(decision.id, answer="done", cost={"dollars": spent})
                    if task.is_reported:
                        solved = task.luck < world.chance[task.kind, arms].mean()
                        one.feedback(rating=bool(solved), source="code")
                router.learn()
            scope = ReportScope(label="main", since=EPOCH, until=now + TASK_S, reward=settings.reward)
            return read_log(router.database, scope)

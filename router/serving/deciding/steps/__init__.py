"""Steps of deciding: one file for each feature that has a part in a decision, in the order of `all_steps`.

The steps of the core that do something in a method, in the order of the calls:

    check            Prices, Rules, Needs, Tasks
    before           KillSwitch, Breaker, Tasks, TurnLimits, Candidates
    after            Candidates, Tasks, JudgeShare, Labels, RebuildingStep, KillSwitch, Needs
    note_committed   Breaker

Incumbent and holdback are parts of the draw itself (policies/draw.py).
"""

from typing import Final

from ragbandit.router.serving.deciding.steps.breaker import Breaker
from ragbandit.router.serving.deciding.steps.candidates import Candidates
from ragbandit.router.serving.deciding.steps.judge_share import JudgeShare
from ragbandit.router.serving.deciding.steps.kill_switch import KillSwitch
from ragbandit.router.serving.deciding.steps.labels import Labels
from ragbandit.router.serving.deciding.steps.needs import Needs
from ragbandit.router.serving.deciding.steps.prices import Prices
from ragbandit.router.serving.deciding.steps.rebuilding import RebuildingStep
from ragbandit.router.serving.deciding.steps.rules import Rules
from ragbandit.router.serving.deciding.steps.step import Step
from ragbandit.router.serving.deciding.steps.tasks import Tasks
from ragbandit.router.serving.deciding.steps.turn_limits import TurnLimits
from ragbandit.shared.additions import load_offered
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.texts.formats import known_choices

#: the steps of the core. `check` and `before` run in this order, `after` in the reverse order, so that a step encloses
#: the later ones and the draw
STEPS: Final[tuple[type[Step], ...]] = (
    Prices,  # first: an invalid cost weight is refused before anything else is checked
    Rules,  # before all steps that choose arms
    Needs,  # next: later steps choose among the arms that can answer; its `after` sees the final arm
    KillSwitch,  # encloses all steps that choose arms: a pinned arm replaces whatever they did
    RebuildingStep,
    Labels,
    JudgeShare,
    Breaker,  # before the tasks: a task leaves an arm that fails
    Tasks,  # before the candidates, which are not asked about later turns
    TurnLimits,  # after the tasks, since a task has a limit, too
    Candidates,
)


def all_steps() -> tuple[type[Step], ...]:
    """The steps of the core, each followed by the steps of additions that follow it (`Step.follows`).

    Raises ConfigError if a step follows an unknown step.
    """
    added = load_offered("steps")
    known = [step.__name__ for step in STEPS]
    for name, step in added.items():
        if step.follows not in ("", *known):
            message = f"the step {name!r} of an addition follows {step.follows!r}, which is not a step of the core"
            raise ConfigError(message, remedy=known_choices(known, given=step.follows))
    following = {place: [step for step in added.values() if step.follows == place] for place in ("", *known)}
    rest = (one for step in STEPS for one in (step, *following[step.__name__]))
    return (*following[""], *rest)

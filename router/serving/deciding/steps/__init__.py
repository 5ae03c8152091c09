"""Steps of deciding: one file for each feature that has a part in a decision, in the order of STEPS."""

from typing import Final

from ragbandit.router.serving.deciding.steps.breaker import Breaker
from ragbandit.router.serving.deciding.steps.candidates import Candidates
from ragbandit.router.serving.deciding.steps.holdback import HoldbackStep
from ragbandit.router.serving.deciding.steps.incumbent import IncumbentStep
from ragbandit.router.serving.deciding.steps.judge_share import JudgeShare
from ragbandit.router.serving.deciding.steps.kill_switch import KillSwitch
from ragbandit.router.serving.deciding.steps.labels import Labels
from ragbandit.router.serving.deciding.steps.needs import Needs
from ragbandit.router.serving.deciding.steps.picks import Picks
from ragbandit.router.serving.deciding.steps.prices import Prices
from ragbandit.router.serving.deciding.steps.rebuilding import RebuildingStep
from ragbandit.router.serving.deciding.steps.rules import Rules
from ragbandit.router.serving.deciding.steps.step import Step
from ragbandit.router.serving.deciding.steps.tasks import Tasks

#: `check` and `before` run in this order, `after` in the reverse order, so that a step encloses the later ones and the
#: draw. A guard of your own is one file with one class, and one line here
STEPS: Final[tuple[type[Step], ...]] = (
    Prices,  # first: an invalid cost weight is refused before anything else is looked at
    Rules,  # before anything else looks at the arms
    Needs,  # next: later steps choose among the arms that can answer; its `after` sees the final arm
    Picks,  # its model was asked before the batch, about the arms that `Needs` left
    KillSwitch,  # encloses all steps that choose arms: a pinned arm replaces whatever they did
    RebuildingStep,
    Labels,
    JudgeShare,
    Breaker,  # before the tasks: a task leaves an arm that fails
    Tasks,  # before the candidates, which are not asked about later turns
    Candidates,
    IncumbentStep,  # part of the draw, as is the holdback
    HoldbackStep,  # its share is fixed, so the draw applies it last
)

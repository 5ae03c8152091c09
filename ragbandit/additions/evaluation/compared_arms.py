"""The arms that a run compares."""

from collections.abc import Collection, Sequence

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName
from ragbandit.workers.setup.chosen_arms import parse_arms
from ragbandit.workers.setup.loading import ArmLoader, LoadedArm
from ragbandit.workers.setup.pipelines import Pipelines, load_pipelines


def load_compared_arms(
    settings: Settings, *, names: Sequence[str] = (), pipelines: Pipelines | None = None, learns: bool
) -> dict[ArmName, LoadedArm]:
    """Load the arms to compare.

    names: by default all pipelines; without pipelines the arms that workers run, or all arms if workers run fewer than
    two. learns: whether the policy learns the outcomes, which needs a configured arm. Raises ConfigError and
    InvalidInput.
    """
    pipelines = pipelines or {}
    default = sorted(settings.worker_arms if len(settings.worker_arms) > 1 else settings.arms)
    selected = list(names or pipelines or default)
    runnable, _ = parse_arms(selected, settings=settings, others=pipelines)
    functions = {name: function for name, function in pipelines.items() if name in selected}
    if len(runnable) + len(functions) < 2:
        remedy = "add another arm or pipeline: with one there is nothing to route"
        raise InvalidInput(f"there is only {', '.join(selected)} to run", field="arms", remedy=remedy)
    if learns:
        check_configured([*runnable, *functions], configured=settings.arms, source="arms")
    return ArmLoader(settings).load(runnable) | load_pipelines(functions, prices=settings.reward.cost)


def check_configured(names: Sequence[str], *, configured: Collection[str], source: str) -> None:
    """Raise InvalidInput if none of these arms is configured, because the learned policy would have no use."""
    if not {*configured} & {*names}:
        arms = ", ".join(f"{name}: {{run_by: caller}}" for name in names)
        message = f"has the arms {', '.join(names)}, the configuration {', '.join(configured)}"
        remedy = f"name the arms of the file as those that will serve; if your code runs them, set arms: {{{arms}}}"
        raise InvalidInput(message, field=source, remedy=remedy)

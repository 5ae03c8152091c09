"""Arms to evaluate: those that were named, with the params of the configuration, or all that can be run."""

from collections.abc import Iterable, Sequence
from typing import get_args

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.formats import known_choices
from ragbandit.shared.types import ArmName
from ragbandit.strategies.base import Need
from ragbandit.strategies.registry import known_arms, make_arms
from ragbandit.workers.wiring.arms import WorkerArm, make_strategies, worker_arms
from ragbandit.workers.wiring.generators import offered

#: the word for every arm
ALL = "all"


def parse_arms(wanted: Sequence[str], *, settings: Settings) -> tuple[dict[str, WorkerArm], dict[str, str]]:
    """The arms to run, and of "all" those that cannot be run with the reason, both by name.

    An arm of the configuration has its params from there, another one has its defaults. "all" is every arm of
    ours, of installed packages and of the configuration. Raises ConfigError for an arm that is named and cannot be
    run, beside "all" too, and InvalidInput for one that nobody knows.
    """
    names = list(dict.fromkeys(name.strip() for words in wanted for name in words.split(",") if name.strip()))
    known = {name: WorkerArm() for name in known_arms()} | worker_arms(settings)
    _check_known(names, known=known, settings=settings)
    arms = {name: known[name] for name in names if name != ALL}
    if arms:
        make_strategies(settings, arms)
    lacking: dict[str, str] = {}
    for name, each in known.items() if ALL in names else ():
        if name in arms:
            continue
        try:
            arm = make_arms({name: each.params}, capabilities=frozenset(get_args(Need)))[ArmName(name)]
        except ConfigError as error:
            lacking[name] = str(error)
            continue
        if unmet := sorted(arm.needs - offered(settings.named_generators[each.generator])):
            lacking[name] = f"the generator lacks {', '.join(unmet)}"
        else:
            arms[name] = each
    return arms, lacking


def _check_known(names: Sequence[str], *, known: Iterable[str], settings: Settings) -> None:
    """Raises InvalidInput with what is known, and what was most likely meant."""
    every = [*sorted(known), ALL]
    if not names:
        raise InvalidInput("no strategy is named", field="strategy", remedy=f"known: {', '.join(every)}")
    for name in names:
        if name in every:
            continue
        if name in settings.arms:
            raise InvalidInput(f"{name!r} is run by its caller", field="strategy", remedy="name an arm of our workers")
        raise InvalidInput(f"{name!r} is not an arm we know", field="strategy", remedy=known_choices(every, given=name))

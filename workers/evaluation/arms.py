"""Arms to evaluate: those that were named, with the params of the configuration, or all that can be run."""

from collections.abc import Iterable, Sequence
from typing import get_args

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.formats import known_choices
from ragbandit.strategies.base import Need
from ragbandit.strategies.registry import known_arms, make_arms
from ragbandit.strategies.run import Strategy
from ragbandit.workers.wiring.arms import arm_params
from ragbandit.workers.wiring.generators import offered

#: the word for every arm
ALL = "all"


def parse_arms(wanted: Sequence[str], *, settings: Settings) -> tuple[dict[str, Strategy], dict[str, str]]:
    """The arms to run, and of "all" those that cannot be run with the reason, both by name.

    An arm of the configuration has its params from there, another one has its defaults. "all" is every arm of
    ours, of installed packages and of the configuration. Raises ConfigError for an arm that is named and cannot be
    run, beside "all" too, and InvalidInput for one that nobody knows.
    """
    names = list(dict.fromkeys(name.strip() for words in wanted for name in words.split(",") if name.strip()))
    known: dict[str, dict[str, object]] = {name: {} for name in known_arms()} | arm_params(settings)
    _check_known(names, known=known, settings=settings)
    capabilities = offered(settings.generator)
    named = {name: known[name] for name in names if name != ALL}
    named_arms = make_arms(named, capabilities=capabilities) if named else {}
    arms = {str(name): arm for name, arm in named_arms.items()}
    lacking: dict[str, str] = {}
    for name, params in known.items() if ALL in names else ():
        if name in arms:
            continue
        try:
            arm = next(iter(make_arms({name: params}, capabilities=frozenset(get_args(Need))).values()))
        except ConfigError as error:
            lacking[name] = str(error)
            continue
        if unmet := sorted(arm.needs - capabilities):
            lacking[name] = f"the generator lacks {', '.join(unmet)}"
        else:
            arms[name] = arm
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

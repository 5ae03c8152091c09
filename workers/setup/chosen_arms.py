"""Arms by their names, for a command that runs them."""

from collections.abc import Collection, Iterable, Sequence
from typing import get_args

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.texts.formats import known_choices
from ragbandit.shared.types import ArmName
from ragbandit.strategies.base import Need
from ragbandit.strategies.registry import is_form, known_arms, make_arms
from ragbandit.workers.setup.generators import WorkerArm, capabilities_of, make_strategies, worker_arms

ALL = "all"


def parse_arms(
    names: Sequence[str], *, settings: Settings, others: Collection[str] = ()
) -> tuple[dict[str, WorkerArm], dict[str, str]]:
    """Returns (arms to run, name -> reason for each arm of ALL that cannot run). names: of arms, also joined by commas.

    ALL is every strategy of RagBandit and of installed packages, and every arm of the configuration. An arm that is not
    configured has default params. others: names that the caller runs. Raises ConfigError for a named arm that cannot
    run, and InvalidInput for an unknown name.
    """
    names = list(dict.fromkeys(name.strip() for name in ",".join(names).split(",") if name.strip()))
    available = {name: WorkerArm() for name in known_arms()} | worker_arms(settings)
    _check_names(names, known={*available, *others}, configured=settings.arms)
    arms = {name: available[name] for name in names if name != ALL and name not in others}
    if arms:
        make_strategies(settings, arms)
    lacking: dict[str, str] = {}
    if ALL not in names:
        return arms, lacking
    for name, arm in available.items():
        if name in arms:
            continue
        if is_form(name) and name not in settings.arms:
            lacking[name] = "no strategies by themselves; those under `arms` of the configuration run"
            continue
        try:
            strategy = make_arms({name: arm.params}, capabilities=frozenset(get_args(Need)))[ArmName(name)]
        except ConfigError as error:
            lacking[name] = str(error)
            continue
        unmet = sorted(strategy.needs - capabilities_of(settings.named_generators[arm.generator]))
        if unmet:
            lacking[name] = f"the generator lacks {', '.join(unmet)}"
        else:
            arms[name] = arm
    return arms, lacking


def _check_names(names: Sequence[str], *, known: Iterable[str], configured: Collection[str]) -> None:
    every = [*sorted(known), ALL]
    if not names:
        raise InvalidInput("no strategy is named", field="strategy", remedy=f"known: {', '.join(every)}")
    in_code = [name for name in names if name in configured and name not in every]
    if in_code:
        listed = " and ".join(filter(None, [", ".join(in_code[:-1]), in_code[-1]]))
        remedy = (
            "`ragbandit advise QUESTIONS.jsonl --module MODULE:NAME` runs your functions, "
            "`ragbandit advise --table T.jsonl` takes outcomes"
        )
        raise InvalidInput(f"this command cannot run {listed}, which your code runs", field="strategy", remedy=remedy)
    unknown = next((name for name in names if name not in every), None)
    if unknown is not None:
        remedy = known_choices(every, given=unknown)
        raise InvalidInput(f"{unknown!r} is not a known arm", field="strategy", remedy=remedy)

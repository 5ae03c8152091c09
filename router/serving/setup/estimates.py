"""Prices of arms from the settings, and the expected dollars of their answers."""

from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from ragbandit.router.config.named_sections import DEFAULT, section_of
from ragbandit.router.config.sections import GeneratorSettings, assumed_prices
from ragbandit.shared.additions import arm_parts
from ragbandit.shared.model_servers.call_prices import named_tier
from ragbandit.shared.model_servers.token_usage import USUAL_CALL

if TYPE_CHECKING:
    from ragbandit.router.storage.access.expected_dollars import ExpectedDollars

#: the arms that workers run -> their params
Arms = Mapping[str, Mapping[str, Any]]

#: classes of arms that ask no generator, and report their own dollars
OWN_COSTS: Final = frozenset({"http", "callable"})


def prices_of_arms(arms: Arms, *, generators: Mapping[str, GeneratorSettings]) -> dict[str, Sequence[Any]]:
    """Arm -> dollars per million tokens of its most expensive model. Without arms one of whose models has no price."""
    prices: dict[str, Sequence[Any]] = {}
    for arm, params in arms.items():
        asked = filter(None, map(generators.get, _generators_of(arm, params, arms=arms) or {DEFAULT}))
        listed = [one.prices_by_model.get(one.model) for one in asked if one.server or one.prices_by_model]
        if listed and None not in listed:
            prices[arm] = max(filter(None, listed), key=USUAL_CALL.dollars)
    return prices


def priced_generators(arms: Arms, *, generators: Mapping[str, GeneratorSettings]) -> dict[str, str]:
    """Arm -> name of its generator, for arms that have a price and do not consist of other arms."""
    priced = prices_of_arms(arms, generators=generators)
    alone = (arm for arm in priced if arms[arm].get("class", arm) not in arm_parts())
    return {arm: str(arms[arm].get("generator") or DEFAULT) for arm in alone}


def unpriced_arms(arms: Arms, *, generators: Mapping[str, GeneratorSettings]) -> dict[str, list[str]]:
    """Section of a generator without listed prices -> the arms that our workers run with it.

    A model in our process costs no dollars, and arms of the classes in OWN_COSTS report their own cost.
    """
    unpriced: dict[str, list[str]] = {}
    for arm, params in arms.items():
        for name in sorted(_generators_of(arm, params, arms=arms)):
            generator = generators.get(name)
            if generator is None or generator.server is None or generator.model in generator.prices_by_model:
                continue
            unpriced.setdefault(section_of("generator", name), []).append(arm)
    return unpriced


def _generators_of(arm: str, params: Mapping[str, Any], *, arms: Arms) -> set[str]:
    """Names of the generators that an arm and its parts ask."""
    names = set[str]()
    for kind, of_part in plain_parts_of(arm, params, arms=arms):
        named, is_own = of_part.get("generator"), kind in OWN_COSTS or ":" in kind
        names |= {str(named)} if named is not None else set[str]() if is_own else {DEFAULT}
    return names


def plain_parts_of(
    arm: str, params: Mapping[str, Any], *, arms: Arms, parents: Set[str] = frozenset()
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(class, params) of an arm, or of the arms that it asks if it has parts. parents: arms that contain this arm"""
    kind = str(params.get("class", arm))
    parts = [params.get(param) for param in arm_parts().get(kind, ())]
    if not parts or arm in parents:
        yield kind, params
        return
    for part in parts:
        chosen = arms.get(part) if isinstance(part, str) else part
        if isinstance(chosen, dict):
            yield from plain_parts_of(str(part), chosen, arms=arms, parents=parents | {arm})


def expected_dollars(arms: Arms, *, generators: Mapping[str, GeneratorSettings]) -> "ExpectedDollars":
    """Expected dollars of answers, for the arms that workers run."""
    from ragbandit.router.storage.access.expected_dollars import ExpectedDollars  # late: it loads a database engine

    prices = prices_of_arms(arms, generators=generators)
    asked = {arm: generators[name] for arm, name in priced_generators(arms, generators=generators).items()}
    models = {arm: generator.model for arm, generator in asked.items()}
    tiers = {arm: named_tier(one.server.fields) for arm, one in asked.items() if one.server is not None}
    unpriced = chain.from_iterable(unpriced_arms(arms, generators=generators).values())
    searching = [arm for arm, params in arms.items() if params.get("class", arm) != "model"]
    assumed = assumed_prices(generators)
    more: Any = {"assumed": assumed, "searching": searching, "tiers": tiers}
    return ExpectedDollars(prices=prices, models=models, unpriced=[*unpriced], **more)

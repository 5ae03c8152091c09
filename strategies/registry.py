import inspect
from collections.abc import Mapping, Set
from functools import cache
from typing import Any, cast, get_args

from ragbandit.shared.additions import with_additions, with_faults
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.plugins import declared_classes, import_class, installed_entry_points, load_class
from ragbandit.shared.texts.formats import known_choices
from ragbandit.shared.texts.redaction import describe_value
from ragbandit.shared.types import ArmName
from ragbandit.strategies.base import Need
from ragbandit.strategies.run import Strategy

GROUP = "ragbandit.strategies"  #: group of the entry points by which installed packages add arms

#: need -> generators that meet it, in words; a remedy if the configured generator does not meet the need
_MET_BY: Mapping[Need, str] = {
    "completion": "any generator",
    "chat": "an OpenAI-compatible server, with generator.openai.api: chat",
    "stop": "any built-in generator, or an OpenAI-compatible server",
    "logprobs": "a local model, or an OpenAI-compatible server that returns them (vLLM, OpenAI), with "
    "generator.openai.logprobs: true",
    "entropy": "a local model",
    "attention": "a local model without an encoder",
    "hidden_states": "a local model without an encoder",
    "trained_tokens": "a local model trained for this arm, with its tokens named in generator.trained_tokens",
}


@cache
def built_in_arms() -> Mapping[str, type[Any]]:
    """Name -> class of the arms in `strategies/arms/`, which declare `arm: ClassVar[str] = NAME`, and in additions."""
    return with_additions(declared_classes("ragbandit.strategies.arms", attribute="arm"), hook="arms")


def registered_name(kind: type) -> str:
    """Name of a class in stored records: the name of a built-in arm, or "package.module:Class".

    A class that moves to another module keeps its first name: `stored_name: ClassVar[str] = "package.module:Class"`.
    """
    name = str(vars(kind).get("arm"))
    if built_in_arms().get(name) is kind:
        return name
    return str(vars(kind).get("stored_name", f"{kind.__module__}:{kind.__qualname__}"))


def known_arms() -> tuple[str, ...]:
    return tuple(sorted({*built_in_arms(), *installed_entry_points(GROUP)}))


def with_preset(config: Mapping[str, Mapping[str, object]], *, preset: str) -> dict[str, dict[str, object]]:
    """Add this preset to the params of every arm whose class has the preset and whose params set no preset.

    Raises ConfigError with field "arms_preset" if no arm has the preset, and the error of `make_arms` for a class that
    cannot be used.
    """
    presets = {name: _presets_of(name, path=params.get("class")) for name, params in config.items()}
    if config and not any(preset in names for names in presets.values()):
        remedy = known_choices(sorted(set[str]().union(*presets.values())), given=preset)
        raise ConfigError(f"no arm has the preset {preset!r}", field="arms_preset", remedy=remedy)
    return {
        name: {"preset": preset, **params} if preset in presets[name] else dict(params)
        for name, params in config.items()
    }


def presets_by_default(config: Mapping[str, Mapping[str, object]], *, preset: str) -> tuple[str, ...]:
    """Names of the arms that have this preset and whose params set neither preset, style nor max_tokens."""
    return tuple(
        name
        for name, params in config.items()
        if not {"preset", "style", "max_tokens"} & params.keys()
        and preset in _presets_of(name, path=params.get("class"))
    )


def _presets_of(name: str, *, path: object) -> frozenset[str]:
    presets = getattr(_class_of(name, path=path), "presets", None)
    return frozenset({"small", *presets}) if isinstance(presets, Mapping) else frozenset()


def make_arms(config: Mapping[str, Mapping[str, object]], *, capabilities: frozenset[Need]) -> dict[ArmName, Strategy]:
    """Make the arms. config: name -> params. capabilities: what the generator offers.

    Raises ConfigError, with field "arms", "arms.<name>" or "arms.<name>.<param>", for an empty configuration, an
    unknown arm or param, a value of the wrong type or range, a class that cannot be used, or an unmet need.
    """
    if not config:
        raise ConfigError("no arm is configured", field="arms", remedy=f"known: {', '.join(known_arms())}")
    arms: dict[ArmName, Strategy] = {}
    for name, params in config.items():
        arm = _make_arm(name, params=params)
        check_needs(arm, name=name, capabilities=capabilities)
        arms[ArmName(name)] = arm
    return arms


def generates(arm: Strategy) -> bool:
    return bool(getattr(arm, "generates", True))


def takes_param(name: str, *, path: object, param: str) -> bool:
    """Whether the arm's class has a param of this name. path: value of the arm's param "class"."""
    factory = _class_of(name, path=path)
    try:
        return param in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a callable without a signature
        return False


def is_form(name: str) -> bool:
    """Whether a built-in arm needs params that name what answers: a model, a URL or other arms."""
    return bool(getattr(built_in_arms().get(name), "is_form", False))


def retrieves(arm: Strategy) -> bool:
    return bool(getattr(arm, "retrieves", True))


def _make_arm(name: str, *, params: Mapping[str, object] | None) -> Strategy:
    if params is not None and not isinstance(params, Mapping):
        raise ConfigError(
            f"{describe_value(params)} is not a mapping", field=f"arms.{name}", remedy="give params by name, or {}"
        )
    # In YAML an arm without params is `single_step:`, which reads as None.
    keywords = {str(key): value for key, value in (params or {}).items()}
    factory = _class_of(name, path=keywords.pop("class", None))
    shown = f"{factory.__module__}:{factory.__qualname__}" if hasattr(factory, "__qualname__") else repr(factory)
    try:
        arm = factory(name=name, **keywords)
    except ConfigError:
        raise
    except Exception as error:
        message = f"{shown} cannot be made with {', '.join(keywords) or 'no params'}: {error}"
        remedy = "it is called with name= and the params as keywords"
        raise ConfigError(message, field=f"arms.{name}", remedy=remedy) from error
    return _check_contract(arm, name=name, path=shown)


def _class_of(name: str, *, path: object) -> Any:
    """The class at an import path, or of a built-in arm; without a path the installed or built-in arm `name`."""
    ours = built_in_arms()
    if path is not None:
        if isinstance(path, str) and path not in ours and ":" not in path:
            remedy = f'{known_choices(ours, given=path)}; for your own give "package.module:Class"'
            raise ConfigError(f"there is no built-in arm {path!r}", field=f"arms.{name}.class", remedy=remedy)
        return ours.get(str(path)) or import_class(path, where=f"arms.{name}.class")
    factory = load_class(name, group=GROUP, core=ours, where=f"arms.{name}", option='class: "package.module:Class"')
    if factory is not None:
        return factory
    message = f"there is no arm {name!r}"
    remedy = with_faults(f'{known_choices(known_arms(), given=name)}; for your own give class: "package.module:Class"')
    raise ConfigError(message, field=f"arms.{name}", remedy=remedy)


def _check_contract(arm: Any, *, name: str, path: str) -> Strategy:
    faults = [f"has no {attribute}" for attribute in ("name", "needs", "params") if not hasattr(arm, attribute)]
    if not inspect.iscoroutinefunction(getattr(arm, "answer", None)):
        faults.append("has no `async def answer`")
    if not isinstance(getattr(arm, "needs", frozenset()), Set):
        faults.append(f"has needs {arm.needs!r}, which is not a set")
    if not faults and arm.name != name:
        faults.append(f"calls itself {arm.name!r}")
    if faults:
        remedy = "follow ragbandit.strategies.run.Strategy"
        raise ConfigError(f"{path} {', '.join(faults)}", field=f"arms.{name}", remedy=remedy)
    return cast(Strategy, arm)


def check_needs(arm: Strategy, *, name: str, capabilities: frozenset[Need]) -> None:
    unknown = sorted(arm.needs - set(get_args(Need)))
    if unknown:
        message, remedy = f"needs {', '.join(unknown)}, which are unknown", f"known: {', '.join(get_args(Need))}"
        raise ConfigError(message, field=f"arms.{name}", remedy=remedy)
    unmet = sorted(arm.needs - capabilities)
    if unmet:
        offered = ", ".join(sorted(capabilities)) or "nothing"
        message = f"needs {', '.join(unmet)}, and the generator offers {offered}"
        remedy = "; ".join(f"{need}: use {_MET_BY[need]}" for need in unmet) + "; or take the arm out"
        raise ConfigError(message, field=f"arms.{name}", remedy=remedy)

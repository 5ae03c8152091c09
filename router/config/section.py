"""The base of all sections of the settings, and sections to which additions add settings of their own."""

import re
from collections.abc import Callable, Iterable, Sequence
from types import new_class
from typing import Annotated, Any, ClassVar, Final, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ragbandit.shared.additions import add_fault, section_parts, with_faults
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.texts.formats import did_you_mean, known_choices

_Part = TypeVar("_Part", bound="Section")
_Extended = TypeVar("_Extended", bound="Section")
#: dotted keys of the sections to which additions can add settings
EXTENDED: Final = set[str]()


class Section(BaseModel):
    """Base of all sections. Refuses unknown keys, wrong types, and numbers that are not finite."""

    #: in an addition: paths of settings that accept a section like `generator`, or a name in `generators`
    by_name: ClassVar[tuple[tuple[str, ...], ...]] = ()
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def findings(self) -> Iterable[Any]:
        """A `Finding` for each unexpected setting. Additions override this (`ragbandit.hooks`). Raises ConfigError."""
        return ()

    def around(self, retriever: Any) -> Any:
        """`retriever`, a `RetrieverKind`, with what these settings add. Additions override this (`ragbandit.hooks`)."""
        return retriever

    def of(self, part: type[_Part], /) -> _Part:
        """This section with the settings of the class `part` of an addition. Raises ConfigError if it has none."""
        if not isinstance(self, part):
            message = f"{part.__module__}.{part.__name__} has no settings in {type(self).__name__}"
            raise ConfigError(message, remedy=with_faults("declare them in Addition.sections"))
        return self


def extended(section: str) -> Callable[[type[_Extended]], type[_Extended]]:
    """Add the settings that additions declare for a section. section: its dotted key, "" for the top level.

    The added keys follow the section's own keys, with their defaults, ranges and comments. The core reads its own keys
    as attributes; an addition reads its keys by `settings.of(Part)`. If a part has a key that exists already, the part
    is left out, and a finding names its addition.
    """

    def extend(core: type[_Extended]) -> type[_Extended]:
        EXTENDED.add(section)
        known, parts = dict.fromkeys(core.model_fields, core.__name__), list[type[Any]]()
        for part in section_parts(section):
            twice = [name for name in part.model_fields if name in known or hasattr(core, name)]
            for name in twice:
                first = known.get(name, core.__name__)
                add_fault(part.__module__, f"{part.__name__}: {first} has a setting {name!r} already")
            if not twice:
                known |= dict.fromkeys(part.model_fields, part.__name__)
                parts.append(part)
        if not parts:
            return core
        same = {"__module__": core.__module__, "__qualname__": core.__qualname__, "__doc__": core.__doc__}
        bases = *parts[::-1], core  # reversed, since pydantic collects fields from the last base to the first
        return cast(type[_Extended], new_class(core.__name__, bases, exec_body=lambda names: names.update(same)))

    return extend


#: path of a user's function or class: "package.module:name"
_PATH: Final = r"^[\w.]+:[\w.]+$"

#: names of the core's retrievers; additions have further names
RETRIEVERS: Final = ("bm25", "dense")


def one_of(known: Sequence[str], *, or_path: bool = False) -> AfterValidator:
    """A validator that refuses texts other than known names. or_path: accept a path "package.module:function", too."""

    def check(text: str) -> str:
        if text not in known and not (or_path and re.match(_PATH, text)):
            further = ", or your own as package.module:function" if or_path else ""
            is_shown = did_you_mean(text, known) or re.fullmatch("[a-z_]{1,32}", text)  # any other text may be a secret
            shown = f" {text!r}" if is_shown else ""
            raise ValueError(with_faults(f"unknown name{shown}; {known_choices(known, given=text)}{further}"))
        return text

    return AfterValidator(check)


def names_schema(known: Sequence[str], *, or_path: bool = False) -> dict[str, Any]:
    """JSON schema of the texts that `one_of` accepts."""
    names: dict[str, Any] = {"enum": list(known)}
    return {"anyOf": [names, {"type": "string", "pattern": _PATH}]} if or_path else names


Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]

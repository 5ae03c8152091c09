"""Settings of the model that picks an arm."""

from typing import Annotated

from pydantic import Field, field_validator

from ragbandit.router.config.section import Section
from ragbandit.router.config.sections import GeneratorSettings


class PickSettings(Section):
    """The language model that picks the arm of a question, for the policy `llm`. See docs/policies.md."""

    #: model that picks: a section like `generator` with `name: openai`, or a name in `generators`; None for `generator`
    generator: GeneratorSettings | None = None
    #: time limit of a pick, retries included, seconds; after it the policy's fallback arm is drawn
    seconds: Annotated[float, Field(gt=0, le=60)] = 5.0
    #: maximum number of tokens of a reply, reasoning tokens included
    max_tokens: Annotated[int, Field(ge=16)] = 256

    @field_validator("generator")
    @classmethod
    def _asked_by_the_router(cls, generator: GeneratorSettings | None) -> GeneratorSettings | None:
        if generator is not None and generator.name != "openai":
            raise ValueError("policy.pick.generator: it must have name: openai")
        return generator


class PickSection(Section):
    """Settings that the policy `llm` adds to the section `policy`."""

    by_name = (("pick", "generator"),)

    pick: PickSettings = PickSettings()

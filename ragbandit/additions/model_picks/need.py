"""The need "pick" of policies: checks of the settings, and the pick for a question."""

import logging
from collections.abc import Mapping, Sequence

from ragbandit.additions.model_picks.picking import INSTRUCTIONS, material_of, parse_pick
from ragbandit.additions.model_picks.settings import PickSection
from ragbandit.router.config.learning import PolicySettings
from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.router.policies.needs import Ask, ModelToAsk
from ragbandit.shared.errors import ConfigError, required_module
from ragbandit.shared.types import ArmName, Json

log = logging.getLogger("ragbandit.policies")


class PickSource:
    """A `ragbandit.router.policies.needs.NeedSource` that asks a language model for an arm."""

    def check(self, policy: PolicySettings, *, generator: GeneratorSettings, undescribed: Sequence[str]) -> None:
        chosen = self.model(policy, generator=generator).generator
        if chosen.name != "openai":
            fault = f"{policy.name} asks a model behind a server for the arm, and generator.name is {chosen.name}"
            remedy = "set it to a section with name: openai, or to the name of one in generators"
            raise ConfigError(fault, field="policy.pick.generator", remedy=remedy)
        required_module("openai", extra="openai", field="policy.pick.generator")
        if undescribed:
            details = {"action": "no_description"}
            text = "arms: the model of policy.pick knows %s by name only; set arms.NAME.description"
            log.warning(text, ", ".join(undescribed), extra=details)

    def model(self, policy: PolicySettings, *, generator: GeneratorSettings) -> ModelToAsk:
        pick = policy.of(PickSection).pick
        return ModelToAsk(generator=pick.generator or generator, seconds=pick.seconds, max_tokens=pick.max_tokens)

    async def of_question(
        self, question: str, *, arms: Sequence[ArmName], descriptions: Mapping[str, str], ask: Ask
    ) -> dict[str, Json]:
        reply = await ask(INSTRUCTIONS, material_of(question, arms=arms, descriptions=descriptions))
        return parse_pick(reply, arms=arms)

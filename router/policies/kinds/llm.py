"""LLM as selector: a chat model picks the arm from a numbered list of descriptions (as LlamaIndex's router engines).

Nothing is learned; it is a baseline, and a good first day where there is no log yet. Different from LlamaIndex's
selector, on purpose:

- The number is checked. There, choice 0 becomes index -1 and silently picks the last engine; here everything but a
  JSON object with a number from the list is a failure, counted by kind, and the fallback arm answers.
- The descriptions say how much work an arm does, not which documents it searches.
- `epsilon` mixes in a uniform draw: a log without chance cannot judge any other policy.
- The list is in the order of the arms' names, whatever order they were offered in: models prefer some places.
- All questions that arrive together are asked together and have one deadline together.

Every decision costs a call of the model, and its tokens are in the facts; no reward setting counts them.
"""

import importlib.util
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, ClassVar, Final

from pydantic import Field

from ragbandit.router.policies.base import Arrays, PolicyNeed, PolicyOutput, counted_state, restored_counts, tally
from ragbandit.router.policies.llm_client import LlmSelector, Selection
from ragbandit.router.policies.params import (
    SINGLE_STEP,
    ArmParam,
    Count,
    HasParams,
    PolicyParams,
    Positive,
    Share,
    Text,
    read_params,
)
from ragbandit.shared.errors import missing_package
from ragbandit.shared.types import ArmName, FeatureRows, Json, Query, Update

__all__ = ["DESCRIPTIONS", "Llm"]

DESCRIPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "no_retrieval": "answers at once from general knowledge; for common facts and plain reasoning",
        "single_step": "looks the question up once and answers from what it finds; for one fact that must be looked up",
        "multi_step": "looks things up several times, each search building on the last; for questions whose answer"
        " takes several facts that have to be found one after the other",
    }
)

#: servers read a seed as an integer of 64 bits
_MOST_SEED: Final = 2**63 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmParams(PolicyParams):
    """Settings of llm."""

    #: its name at the server
    model: Text
    #: the server, for example http://localhost:8000/v1; None is OpenAI
    base_url: Annotated[str, Field(pattern="^https?://")] | None = None
    #: the environment variable with the key; never the key itself, for params are logged
    api_key_env: Text = "OPENAI_API_KEY"
    #: arm -> its description; an arm that is not in it stands in the list with its name alone. None: the texts above
    descriptions: Mapping[str, Text] | None = None
    #: the arm that answers when the model does not; where it is not offered, all arms alike
    fallback: ArmParam = SINGLE_STEP
    #: for all questions of one group together: no caller waits longer, so keep it short
    timeout_s: Positive = 5.0
    #: questions asked at once
    max_concurrency: Count = 8
    #: sent along; None leaves it out
    temperature: Annotated[int | float, Field(ge=0, le=2)] | None = 0
    #: sent along; None leaves it out
    seed: Annotated[int, Field(ge=0, le=_MOST_SEED)] | None = 0
    #: share of exploration
    epsilon: Share = 0.05

    arms_named: ClassVar[tuple[str, ...]] = ("fallback",)


class Llm(HasParams):
    """One minus epsilon on the arm that the model picks, epsilon / K on every arm.

    Raises ConfigError if a param is wrong or the openai package is missing.
    """

    algorithm: ClassVar[str] = "llm"
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset({"text"})
    deterministic: ClassVar[bool] = False
    #: failures in this process so far, by kind (see router.policies.llm_client); of all instances together, since
    #: every snapshot brings a new one. Not part of the state.
    failures: ClassVar[Counter[str]] = Counter()
    _counting: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, **params: Json) -> None:
        settings = read_params(LlmParams, given=params)
        self.descriptions = dict(DESCRIPTIONS if settings.descriptions is None else settings.descriptions)
        super().__init__(replace(settings, descriptions=self.descriptions))
        if importlib.util.find_spec("openai") is None:
            raise missing_package("openai", extra="openai", field="policy.name")
        self.selector = LlmSelector(
            model=settings.model,
            base_url=settings.base_url,
            api_key_env=settings.api_key_env,
            timeout_s=settings.timeout_s,
            max_concurrency=settings.max_concurrency,
            temperature=settings.temperature,
            seed=settings.seed,
        )
        self.fallback, self.epsilon = settings.fallback, settings.epsilon
        self.seen: dict[ArmName, int] = {}

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        """Asks about every question that has a choice; takes timeout_s at most, and never raises for the model's sake.

        The facts hold the pick, the failure's name, the reply and the tokens: {"llm": {"choice": "multi_step",
        "failed": None, "reply": ..., "prompt_tokens": ..., "completion_tokens": ...}, "epsilon": 0.05}.
        """
        del features
        listed = [sorted(offered) for offered in arms]
        open_ = [place for place, names in enumerate(listed) if len(names) > 1]
        asked = [(queries[place].text, [self._method(arm) for arm in listed[place]]) for place in open_]
        answers = dict(zip(open_, self.selector.ask(asked) if asked else [], strict=True))
        self._count(list(answers.values()))
        return [
            self._output(answers.get(place), listed=listed[place], arms=offered) for place, offered in enumerate(arms)
        ]

    def _method(self, arm: ArmName) -> str:
        known = self.descriptions.get(arm)
        return f"{arm}: {known}" if known else arm

    def _count(self, answers: Sequence[Selection]) -> None:
        with self._counting:
            self.failures.update(answer.failed for answer in answers if answer.failed is not None)

    def _output(self, answer: Selection | None, *, listed: Sequence[ArmName], arms: Sequence[ArmName]) -> PolicyOutput:
        """The word on one question; without an answer there was one arm only, and nobody was asked."""
        if answer is None:
            return PolicyOutput(pmf=(1.0,) * len(arms), facts={"llm": None, "epsilon": self.epsilon})
        choice = None if answer.choice is None else listed[answer.choice]
        played = choice or self.fallback
        epsilon = self.epsilon if played in arms else 1.0
        pmf = tuple(epsilon / len(arms) + (1.0 - epsilon if arm == played else 0.0) for arm in arms)
        facts: dict[str, Json] = {
            "choice": choice,
            "failed": answer.failed,
            "reply": answer.reply,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
        }
        return PolicyOutput(pmf=pmf, facts={"llm": facts, "epsilon": epsilon})

    def learn(self, update: Update) -> None:
        """Count it: the ledger goes on, so that a learning policy can be trained on it later."""
        tally(self.seen, update)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """The updates seen."""
        return counted_state(self.seen)

    def restore(self, arrays: Arrays, facts: Mapping[str, Json]) -> None:
        """Take over the counts."""
        self.seen = restored_counts(arrays, facts)

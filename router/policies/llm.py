"""An LLM picks the arm from a numbered list of descriptions (the "LLM as selector" of LlamaIndex's router engines).

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
from types import MappingProxyType
from typing import ClassVar, Final

from ragbandit.router.errors import missing_package
from ragbandit.router.policies.base import Arrays, PolicyNeed, PolicyOutput, counted_state, restored_counts, tally
from ragbandit.router.policies.llm_client import Answer, LlmSelector
from ragbandit.router.policies.params import check_arm, check_number, check_positive, check_text, check_whole, refused
from ragbandit.router.types import ArmName, FeatureRows, Json, Query, Update

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


class Llm:
    """One minus epsilon on the arm that the model picks, epsilon / K on every arm.

    model: its name at the server. base_url: the server, for example http://localhost:8000/v1; None is OpenAI.
    api_key_env: the environment variable with the key; never the key itself, for params are logged.
    descriptions: arm -> what it does; an arm that is not in it stands in the list with its name alone. None: the
    texts above. fallback: the arm that answers when the model does not; where it is not offered, all arms alike.
    timeout_s: for all questions of one group together (> 0): no caller waits longer, so keep it short.
    max_concurrency: questions asked at once (>= 1). temperature in [0, 2], seed: sent along; None leaves them out.
    epsilon: share of exploration in [0, 1].
    Raises ConfigError if a param is wrong or the openai package is missing.
    """

    algorithm: ClassVar[str] = "llm"
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset({"text"})
    deterministic: ClassVar[bool] = False
    #: what went wrong in this process so far, by kind (see router.policies.llm_client); of all instances together,
    #: since
    #: every snapshot brings a new one. Not part of the state.
    failures: ClassVar[Counter[str]] = Counter()
    _counting: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self,
        *,
        model: str,
        base_url: str | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        descriptions: Mapping[str, str] | None = None,
        fallback: str = "single_step",
        timeout_s: float = 5.0,
        max_concurrency: int = 8,
        temperature: float | None = 0,
        seed: int | None = 0,
        epsilon: float = 0.05,
    ) -> None:
        if base_url is not None and not _is_url(base_url):
            raise refused("base_url", base_url, wanted="a URL", remedy="for example http://localhost:8000/v1")
        if descriptions is not None and not _are_texts(descriptions):
            raise refused("descriptions", descriptions, wanted="an object of texts")
        if temperature is not None:
            check_number("temperature", temperature, most=2.0)
        if seed is not None:
            check_whole("seed", seed, most=_MOST_SEED)
        if importlib.util.find_spec("openai") is None:
            raise missing_package("openai", extra="openai", field="policy.name")
        self.selector = LlmSelector(
            model=check_text("model", model, wanted="the name of a model", remedy="give the server's name of it"),
            base_url=base_url,
            api_key_env=check_text("api_key_env", api_key_env, wanted="the name of an environment variable"),
            timeout_s=check_positive("timeout_s", timeout_s),
            max_concurrency=check_whole("max_concurrency", max_concurrency, least=1),
            temperature=temperature,
            seed=seed,
        )
        self.descriptions = dict(DESCRIPTIONS if descriptions is None else descriptions)
        self.fallback, self.epsilon = check_arm("fallback", fallback), check_number("epsilon", epsilon, most=1.0)
        self.seen: dict[ArmName, int] = {}

    @property
    def params(self) -> Mapping[str, Json]:
        """The settings above."""
        return {
            "model": self.selector.model,
            "base_url": self.selector.base_url,
            "api_key_env": self.selector.api_key_env,
            "descriptions": dict(self.descriptions),
            "fallback": self.fallback,
            "timeout_s": self.selector.timeout_s,
            "max_concurrency": self.selector.max_concurrency,
            "temperature": self.selector.temperature,
            "seed": self.selector.seed,
            "epsilon": self.epsilon,
        }

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

    def _count(self, answers: Sequence[Answer]) -> None:
        with self._counting:
            self.failures.update(answer.failed for answer in answers if answer.failed is not None)

    def _output(self, answer: Answer | None, *, listed: Sequence[ArmName], arms: Sequence[ArmName]) -> PolicyOutput:
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


def _is_url(value: object) -> bool:
    return isinstance(value, str) and value.startswith(("http://", "https://"))


def _are_texts(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(each, str) and each for each in value.values())

"""Prompts of the judge, and checks that its model can be made, without loading one."""

import logging
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from typing import Final

from ragbandit.router.config.named_sections import errors_of
from ragbandit.router.config.settings import GeneratorSettings, JudgeSettings, Settings
from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.strategies.base import Generator, Passage, Prompt, PromptTooLong
from ragbandit.strategies.prompting.prompts import Template, load_templates
from ragbandit.workers.judge.rubric import (
    ASKS_FOR_ANSWERS,
    ASKS_FOR_QUESTIONS,
    CANNOT_INFER,
    RUBRIC,
    JudgedAnswer,
    PromptMaker,
    UnreadableReply,
    mark_of,
    parsed_scores,
    weighted_score,
)
from ragbandit.workers.wiring.generators import check_generator, make_generator

log = logging.getLogger("ragbandit.judge")

#: characters of question, answer and passage that must fit into the judge's context in addition to the rubric
_LEAST_CHARS: Final = 400


def judge_templates(overrides: Mapping[str, str]) -> Mapping[str, Template]:
    """The prompts of the judge and of `ragbandit evaluate --family crud`, by name: ours, or the user's own.

    overrides: by name, each a text or the path of a file. Raises ConfigError naming `judge.templates.<name>`; also for
    a prompt for answers without CANNOT_INFER in it, since whatever else a judge writes where the text has no answer
    counts as one.
    """
    where = "judge.templates"
    templates = load_templates(
        [ASKS_FOR_QUESTIONS, ASKS_FOR_ANSWERS, RUBRIC], overrides=overrides, field=where, package=__package__
    )
    asks = templates[ASKS_FOR_ANSWERS]
    if not any(CANNOT_INFER in part for part in (asks.instructions, *asks.demonstrations, asks.body, asks.prefix)):
        remedy = "tell the judge to write that where the text has no answer: whatever else it writes counts as one"
        raise ConfigError(f"does not have {CANNOT_INFER} in it", field=f"{where}.{ASKS_FOR_ANSWERS}", remedy=remedy)
    return templates


class JudgeOfArm:
    """The judge's prompt and model as the condition of an arm; without reference answers."""

    def __init__(self, settings: JudgeSettings, *, generator: Generator) -> None:
        self.generator, self.max_tokens = generator, settings.max_tokens
        template = judge_templates(settings.templates)[RUBRIC]
        self._maker = PromptMaker(settings=settings, template=template, generator=generator)

    def ask(self, *, question: str, answer: str, sources: Sequence[Passage]) -> tuple[Prompt, Callable[[str], float]]:
        """(the prompt, what gives the score in its reply). Raises PromptTooLong, and ArmFailed for no score."""
        settings = self._maker.settings
        material = JudgedAnswer(question=question, answer=answer, passages=tuple(sources[: settings.passages]))
        asked = self._maker.prompt(material, mark=f"#{token_hex(6)}#")

        def score(reply: str) -> float:
            try:
                return weighted_score(parsed_scores(reply, criteria=asked.criteria), weights=settings.criterion_weights)
            except UnreadableReply as error:
                raise ArmFailed(f"the judge's reply cannot be used: {error}") from error

        return asked.prompt, score


def check_judge(settings: Settings, *, fetch: bool) -> None:
    """Raises ConfigError if a prompt is unusable, or if the judge cannot be made on this host. Loads no model. fetch:
    see `check_generator`.
    """
    template, chosen = judge_templates(settings.judge.templates)[RUBRIC], settings.judge.generator
    if chosen is None:
        return
    if (chosen.name, chosen.model) == ("local", GeneratorSettings().model):
        log.warning(
            "judge.generator: %s is too small to judge, and its replies give no scores; set a larger model",
            chosen.model,
        )
    with errors_of("judge.generator", kind="generator"):
        check_generator(chosen, fetch=fetch)
    if chosen.name != "local":
        uncached = chosen.model_copy(update={"cache": None})
        check_room(settings, template=template, generator=make_generator(uncached))


def check_room(settings: Settings, *, template: Template, generator: Generator) -> None:
    """Refuse a model in whose context the rubric, a short answer and a short passage have no room."""
    chosen = settings.judge
    text = "word " * (_LEAST_CHARS // 5)
    passages = (Passage(id="1", title="", text=text),) if chosen.passages else ()
    try:
        maker = PromptMaker(settings=chosen, template=template, generator=generator)
        maker = maker.showing(passage_words=2 * len(text.split()), text_chars=_LEAST_CHARS)  # the bars count as well
        material = JudgedAnswer(question=text, answer=text, passages=passages)
        shown = maker.prompt(material, mark=mark_of("", attempt=0, secret=b"")).prompt.body
        fits = shown.count(text.strip()) >= 2 + len(passages)
    except PromptTooLong:
        fits = False
    if not fits:
        raise ConfigError(
            f"the rubric, a reply of {chosen.max_tokens} tokens and a short answer and passage have no room in "
            f"{generator.context_tokens} tokens",
            field="judge.generator.context_tokens",
            remedy="set it to what the model takes, 8192 for example; or lower judge.max_tokens",
        )

"""Checks of the judge's settings."""

import logging
from typing import Final

from ragbandit.router.config.named_sections import rename_errors
from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.router.config.settings import JudgeSettings
from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.base import Generator, Passage
from ragbandit.strategies.failures import PromptTooLong
from ragbandit.workers.judge import rubric
from ragbandit.workers.setup.generator_kinds import generator_kind
from ragbandit.workers.setup.generators import make_generator

log = logging.getLogger("ragbandit.judge")

#: a question, an answer and a passage of this many characters each must fit into the judge's context together
_LEAST_CHARS: Final = 400


def check_judge(settings: JudgeSettings, *, fetch: bool) -> None:
    """Raise ConfigError if a prompt or the model cannot be used. Loads no model. fetch: see `GeneratorKind.check`."""
    rubric.rubric_template(settings.templates)
    chosen = settings.generator
    if chosen is None:
        return
    with rename_errors("judge.generator", kind="generator"):
        kind = generator_kind(chosen)
        if kind.is_local and chosen.model == GeneratorSettings().model:
            message = "judge.generator: %s is too small to judge, and its replies give no scores; set a larger model"
            log.warning(message, chosen.model)
        kind.check(fetch=fetch)
    if not kind.is_local:
        check_room(settings, generator=make_generator(chosen))


def check_room(settings: JudgeSettings, *, generator: Generator) -> None:
    """Raise ConfigError if the rubric, a short answer and a short passage do not fit into the model's context."""
    template, text = rubric.rubric_template(settings.templates), "word " * (_LEAST_CHARS // 5)
    passages = (Passage(id="1", title="", text=text),)[: settings.passages]
    try:
        maker = rubric.PromptMaker(settings=settings, template=template, generator=generator)
        # Twice the words, because the bar before each line counts as a word.
        maker = maker.with_limits(passage_words=2 * len(text.split()), text_chars=_LEAST_CHARS)
        material = rubric.JudgedAnswer(question=text, answer=text, passages=passages)
        shown = maker.prompt(material, mark=rubric.new_mark()).prompt.body
        fits = shown.count(text.strip()) >= 2 + len(passages)
    except PromptTooLong:
        fits = False
    if not fits:
        raise ConfigError(
            f"the rubric, a reply of {settings.max_tokens} tokens, a short answer and a short passage do not fit into "
            f"{generator.context_tokens} tokens",
            field="judge.generator.context_tokens",
            remedy="set it to the model's context, for example 8192; or lower judge.max_tokens",
        )

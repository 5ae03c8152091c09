"""Wiring of the judge: its prompt, and checks that its model can be made. Loaded by workers/judging/loading.py."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from ragbandit.router.config.settings import GeneratorSettings, Settings
from ragbandit.router.errors import ConfigError
from ragbandit.strategies.base import Generator, Passage, PromptTooLong
from ragbandit.strategies.prompting.prompts import Template, load_template
from ragbandit.strategies.prompting.rubric import RUBRIC, Material, mark_of, rubric_prompt
from ragbandit.workers.wiring.generators import check_generator_of, make_generator

__all__ = ["as_the_judges", "check_judge", "check_room", "judge_template"]

log = logging.getLogger("ragbandit.judge")

#: letters of question, answer and passage that the judge's model must have room for beside the rubric
_LEAST_CHARS: Final = 400


def judge_template(settings: Settings) -> Template:
    """The judge's prompt: ours, or the user's own. Raises ConfigError naming `judge.templates.rubric`."""
    given = {name: text for name, text in settings.judge.templates.items() if name == RUBRIC}
    return load_template(RUBRIC, overrides=given, field="judge.templates")


def check_judge(settings: Settings, *, fetch: bool) -> None:
    """Refuse a judge that no worker here could make, without loading a model. Nothing where none is configured.

    fetch: as of `check_generator`. Raises ConfigError.
    """
    template, chosen = judge_template(settings), settings.judge.generator
    if chosen is None:
        return
    if (chosen.name, chosen.model) == ("local", GeneratorSettings().model):
        log.warning(
            "judge.generator: %s is too small to judge, and its replies give no scores; set a larger model",
            chosen.model,
        )
    with as_the_judges():
        check_generator_of(chosen, fetch=fetch)
    if chosen.name != "local":
        quiet = chosen.model_copy(update={"cache": None, "openai": replace(chosen.openai, probe=False)})
        check_room(settings, template=template, generator=make_generator(quiet))


def check_room(settings: Settings, *, template: Template, generator: Generator) -> None:
    """Refuse a model in whose context the rubric, a short answer and a short passage have no room."""
    chosen = settings.judge
    text = "word " * (_LEAST_CHARS // 5)
    passages = (Passage(id="1", title="", text=text),) if chosen.passages else ()
    try:
        asked = rubric_prompt(
            template,
            material=Material(question=text, answer=text, passages=passages),
            mark=mark_of("", attempt=0),
            generator=generator,
            max_tokens=chosen.max_tokens,
            passage_words=2 * len(text.split()),  # the bars count as well
            text_chars=_LEAST_CHARS,
        )
        fits = asked.prompt.body.count(text.strip()) >= 2 + len(passages)
    except PromptTooLong:
        fits = False
    if not fits:
        raise ConfigError(
            f"the rubric, a reply of {chosen.max_tokens} tokens and a short answer and passage have no room in "
            f"{generator.context_tokens} tokens",
            field="judge.generator.context_tokens",
            remedy="set it to what the model takes, 8192 for example; or lower judge.max_tokens",
        )


@contextmanager
def as_the_judges() -> Iterator[None]:
    """Errors about a generator name the judge's settings."""
    try:
        yield
    except ConfigError as error:
        field = f"judge.{error.field}" if error.field and error.field.startswith("generator") else error.field
        remedy = error.remedy and error.remedy.replace("generator.", "judge.generator.")
        raise ConfigError(error.message, field=field, remedy=remedy) from error

"""Wiring of the judge: its prompt, and checks that its model can be made. Loaded by workers/judging/loading.py."""

from collections.abc import Iterator
from contextlib import contextmanager

from ragbandit.router.config.settings import Settings
from ragbandit.router.errors import ConfigError
from ragbandit.strategies.prompting.prompts import Template, load_template
from ragbandit.strategies.prompting.rubric import RUBRIC
from ragbandit.workers.wiring.generators import check_generator_of

__all__ = ["as_the_judges", "check_judge", "judge_template"]


def judge_template(settings: Settings) -> Template:
    """The judge's prompt: ours, or the user's own. Raises ConfigError naming `judge.templates.rubric`."""
    given = {name: text for name, text in settings.judge.templates.items() if name == RUBRIC}
    return load_template(RUBRIC, overrides=given, field="judge.templates")


def check_judge(settings: Settings, *, fetch: bool) -> None:
    """Refuse a judge that no worker here could make, without loading a model. Nothing where none is configured.

    fetch: as of `check_generator`. Raises ConfigError.
    """
    judge_template(settings)
    if settings.judge.generator is not None:
        with as_the_judges():
            check_generator_of(settings.judge.generator, fetch=fetch)


@contextmanager
def as_the_judges() -> Iterator[None]:
    """Errors about a generator name the judge's settings."""
    try:
        yield
    except ConfigError as error:
        field = f"judge.{error.field}" if error.field and error.field.startswith("generator") else error.field
        remedy = error.remedy and error.remedy.replace("generator.", "judge.generator.")
        raise ConfigError(error.message, field=field, remedy=remedy) from error

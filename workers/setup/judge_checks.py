"""Prompts of the judge, checks of its settings, and the judge of a cascade or of `advise`."""

import logging
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from typing import Final

from ragbandit.router.config.named_sections import errors_of
from ragbandit.router.config.settings import GeneratorSettings, JudgeSettings
from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.strategies.base import Generator, Passage, Prompt
from ragbandit.strategies.failures import PromptTooLong
from ragbandit.strategies.prompting.prompts import Template, load_templates
from ragbandit.workers.judge import rubric
from ragbandit.workers.setup.generators import check_generator, make_generator

log = logging.getLogger("ragbandit.judge")

#: a question, an answer and a passage of this many characters each must fit into the judge's context together
_LEAST_CHARS: Final = 400


def judge_template(overrides: Mapping[str, str]) -> Template:
    """The rubric's prompt. overrides: `judge.templates`."""
    names, field = ["rubric"], "judge.templates"
    return load_templates(names, overrides=overrides, field=field, package="ragbandit.workers.judge")["rubric"]


class JudgeOfArm:
    """The judge's prompt and model for the answers of a cascade or of `advise`."""

    def __init__(self, settings: JudgeSettings, *, generator: Generator) -> None:
        self.generator, self.max_tokens = generator, settings.max_tokens
        template = judge_template(settings.templates)
        self._maker = rubric.PromptMaker(settings=settings, template=template, generator=generator)

    def ask(self, *, question: str, answer: str, sources: Sequence[Passage]) -> tuple[Prompt, Callable[[str], float]]:
        """Returns (prompt, function: reply -> score). Raises ArmFailed if a text seems to address the judge."""
        settings = self._maker.settings
        material = rubric.JudgedAnswer(question=question, answer=answer, passages=tuple(sources[: settings.passages]))
        request = self._maker.prompt(material, mark=f"#{token_hex(6)}#")
        if request.suspicious:
            raise ArmFailed("the answer, the question or a passage seems to address the judge, so it is not judged")

        def score(reply: str) -> float:
            try:
                scores = rubric.parsed_scores(reply, criteria=request.criteria)
            except rubric.UnreadableReply as error:
                raise ArmFailed(f"the judge gave no usable scores: {error}") from error
            return rubric.mean_score(scores)

        return request.prompt, score


def check_judge(settings: JudgeSettings, *, fetch: bool) -> None:
    """Raise ConfigError if a prompt or the model cannot be used. Loads no model. fetch: see `check_generator`."""
    template = judge_template(settings.templates)
    chosen = settings.generator
    if chosen is None:
        return
    if (chosen.name, chosen.model) == ("local", GeneratorSettings().model):
        message = "judge.generator: %s is too small to judge, and its replies give no scores; set a larger model"
        log.warning(message, chosen.model)
    with errors_of("judge.generator", kind="generator"):
        check_generator(chosen, fetch=fetch)
    if chosen.name != "local":
        check_room(settings, template=template, generator=make_generator(chosen))


def check_room(settings: JudgeSettings, *, template: Template, generator: Generator) -> None:
    """Raise ConfigError if the rubric, a short answer and a short passage do not fit into the model's context."""
    text = "word " * (_LEAST_CHARS // 5)
    passages = (Passage(id="1", title="", text=text),)[: settings.passages]
    try:
        maker = rubric.PromptMaker(settings=settings, template=template, generator=generator)
        # Twice the words, because the bar before each line counts as a word.
        maker = maker.showing(passage_words=2 * len(text.split()), text_chars=_LEAST_CHARS)
        material = rubric.JudgedAnswer(question=text, answer=text, passages=passages)
        shown = maker.prompt(material, mark=rubric.mark_of("", attempt=0, secret=b"")).prompt.body
        fits = shown.count(text.strip()) >= 2 + len(passages)
    except PromptTooLong:
        fits = False
    if not fits:
        raise ConfigError(
            f"the rubric, a reply of {settings.max_tokens} tokens and a short answer and passage have no room in "
            f"{generator.context_tokens} tokens",
            field="judge.generator.context_tokens",
            remedy="set it to what the model takes, 8192 for example; or lower judge.max_tokens",
        )

"""Prompts: templates in text files (docs/strategies.md) are filled with values, and shortened to fit the model."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

from ragbandit.shared.errors import ConfigError
from ragbandit.shared.files import read_text
from ragbandit.shared.texts.formats import known_choices
from ragbandit.shared.types import Message
from ragbandit.strategies.answer_stream import Settle
from ragbandit.strategies.base import PACKED_TOKENS, Completion, Generator, Need, Passage, Prompt
from ragbandit.strategies.failures import PromptTooLong, QuestionTooLong
from ragbandit.strategies.prompting.passages import PassagePool, cut_words
from ragbandit.strategies.run import Run

_SECTIONS = ("instructions", "examples", "demonstration", "passage", "body", "prefix")
_SECTION = re.compile(rf"^[^\S\n]*\[({'|'.join(_SECTIONS)})\][^\S\n]*$", re.MULTILINE)
#: a field is a word in braces, also in upper case: {Question} is a field, {"a": 1} is text
_FIELD = re.compile(r"\{([^\W\d]\w*)\}")
_SHOWN = 200  #: maximum number of characters of a wrong path in an error
_NAMED = re.compile(r"^=== (\w+) ===\n", re.MULTILINE)  #: heading in a file with several templates
#: the package whose templates every arm may use
PACKAGE: Final = "ragbandit.strategies.prompting"
_OWN_FIELDS = frozenset({"demonstrations", "passages"})  #: filled by `fit_template`; the arm fills all other fields
_PASSAGE_FIELDS = ("number", "title", "text")
_EXAMPLE_FIELDS = ("passages", "question", "thoughts", "answer")


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    name: str
    instructions: str
    demonstrations: tuple[str, ...]
    passage: str
    body: str
    prefix: str

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(_FIELD.findall(self.instructions + self.body + self.prefix)) - _OWN_FIELDS

    @property
    def takes_passages(self) -> bool:
        return "{passages}" in self.body


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedPrompt:
    prompt: Prompt
    passages: tuple[Passage, ...]  #: passages in the prompt, in order
    losses: tuple[str, ...]  #: parts that were cut or left out, for the trace


def load_templates(
    names: Sequence[str], *, overrides: Mapping[str, str | Path], field: str = "templates", package: str = PACKAGE
) -> Mapping[str, Template]:
    """Load the templates of these names, or their replacements from `overrides`.

    package: its folder `templates` is searched besides the folder that every arm may use.
    overrides: name -> text of a template (a string of at least two lines), or path (a Path, or a string of one line).
    A replacement must have the same fields: without {question} the model would not see the question.
    Raises ConfigError with the field `<field>.<name>`, also for an override that is not in `names`.
    """
    for name in overrides:
        if name not in names:
            raise ConfigError("this template is not used", field=f"{field}.{name}", remedy=f"used: {', '.join(names)}")
    templates = {name: _load_default(name, where=f"{field}.{name}", package=package) for name in names}
    for name, source in overrides.items():
        templates[name] = _load_replacement(templates[name], source=source, where=f"{field}.{name}")
    return templates


def _load_replacement(default: Template, *, source: str | Path, where: str) -> Template:
    template = _parse(default.name, text=_read_source(source, where=where), where=where)
    wrong = template.fields ^ default.fields
    if wrong or template.takes_passages != default.takes_passages:
        needed = sorted(default.fields | ({"passages"} if default.takes_passages else set()))
        message = f"has the fields {sorted(template.fields)}"
        remedy = f"use exactly these: {', '.join('{' + name + '}' for name in needed)}"
        raise ConfigError(message, field=where, remedy=remedy)
    return template


def parsed_template(text: str, *, name: str) -> Template:
    return _parse(name, text=text, where=f"templates.{name}")


def templates_digest(arm: object) -> str | None:
    """Digest, 12 hexadecimal digits, of the templates in an arm's attributes; None if the arm has no templates."""
    templates: set[Template] = set()
    for value in getattr(arm, "__dict__", {}).values():
        if isinstance(value, Template):
            templates.add(value)
        elif hasattr(value, "values") and isinstance(value, Mapping):
            templates.update([part for part in value.values() if isinstance(part, Template)])
    return _digest(frozenset(templates)) if templates else None


# The following functions are cached, because they are called for every question, and templates do not change.
@lru_cache(maxsize=256)
def _digest(templates: frozenset[Template]) -> str:
    text = "\n".join(sorted(json.dumps(asdict(template), sort_keys=True) for template in templates))
    return sha256(text.encode()).hexdigest()[:12]


@lru_cache(maxsize=1024)
def _load_default(name: str, *, where: str, package: str) -> Template:
    texts = _package_templates(package)
    if name not in texts:
        raise ConfigError(f"unknown template {name!r}", field=where, remedy=known_choices(sorted(texts), given=name))
    return _parse(name, text=texts[name], where=where)


@lru_cache(maxsize=16)
def _package_templates(package: str) -> Mapping[str, str]:
    """Name -> text of the templates in the package's folder `templates`, and of those that every arm may use."""
    texts = {} if package == PACKAGE else dict(_package_templates(PACKAGE))
    for file in (resources.files(package) / "templates").iterdir():
        if file.name.endswith(".txt"):
            _, *parts = _NAMED.split(f"=== {file.name.removesuffix('.txt')} ===\n" + file.read_text(encoding="utf-8"))
            texts |= {name: text for name, text in zip(parts[::2], parts[1::2], strict=True) if text.strip()}
    return texts


def _read_source(source: str | Path, *, where: str) -> str:
    if isinstance(source, str) and "\n" in source:
        return source
    remedy = "one line is the path of a UTF-8 text file; the text of a template has at least two lines"
    try:
        return read_text(Path(source))
    except (OSError, ValueError) as error:
        reason = f"there is no {Path(source).absolute()}" if isinstance(error, FileNotFoundError) else None
        reason = reason or getattr(error, "strerror", None) or str(error)
        shown = str(source) if len(str(source)) <= _SHOWN else f"{str(source)[:_SHOWN]}..."
        raise ConfigError(f"{shown!r} cannot be read: {reason}", field=where, remedy=remedy) from error


def _parse(name: str, *, text: str, where: str) -> Template:
    header, *blocks = _SECTION.split("\n".join(text.splitlines()))
    for number, line in enumerate(header.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            message = f"line {number} is before the first section: {line[:40]!r}"
            remedy = f"begin it with '#', or put it under one of {', '.join(f'[{s}]' for s in _SECTIONS)}"
            raise ConfigError(message, field=where, remedy=remedy)
    parts: dict[str, list[str]] = {section: [] for section in _SECTIONS}
    for section, block in zip(blocks[::2], blocks[1::2], strict=True):
        parts[section].append(block.strip())
    for section, texts in parts.items():
        if section != "demonstration" and len(texts) > 1:
            fault = f"the template has {len(texts)} sections [{section}]"
            raise ConfigError(fault, field=where, remedy=f"keep one [{section}]")
    if not parts["body"]:
        raise ConfigError("the template has no section [body]", field=where, remedy="add a [body] with {question}")
    passage = "".join(parts["passage"]) or "{title}\n{text}"
    _check_fields("passage", passage, allowed=_PASSAGE_FIELDS, where=where)
    return Template(
        name=name,
        instructions="".join(parts["instructions"]),
        demonstrations=_demonstrations(parts, passage=passage, where=where),
        passage=passage,
        body=parts["body"][0],
        prefix="".join(parts["prefix"]),
    )


def _check_fields(section: str, text: str, *, allowed: Sequence[str], where: str) -> None:
    unknown = [name for name in _FIELD.findall(text) if name not in allowed]
    if unknown:
        fault = f"the section [{section}] has the unknown field {{{unknown[0]}}}"
        raise ConfigError(fault, field=where, remedy=f"allowed: {', '.join(f'{{{name}}}' for name in allowed)}")


def _demonstrations(parts: Mapping[str, Sequence[str]], *, passage: str, where: str) -> tuple[str, ...]:
    """The demonstrations of a template: those in its sections, or one for each of the examples that it names."""
    forms = parts["demonstration"]
    if not parts["examples"]:
        return tuple(forms)
    if len(forms) != 1:
        fault = f"the template has [examples] and {len(forms)} sections [demonstration]"
        raise ConfigError(fault, field=where, remedy="write one [demonstration], the form of every example")
    _check_fields("demonstration", forms[0], allowed=_EXAMPLE_FIELDS, where=where)
    examples = _package_examples()
    name = parts["examples"][0]
    if name not in examples:
        raise ConfigError(f"unknown examples {name!r:.80}", field=where, remedy=known_choices([*examples], given=name))
    return tuple(_demonstration(example, form=forms[0], passage=passage) for example in examples[name])


def _demonstration(example: Mapping[str, Any], *, form: str, passage: str) -> str:
    """An example in its form. Its passages are sorted by title, so that their order does not show which are needed."""
    passages = sorted([*example["gold"], *example["others"]])
    shown = [
        _fill_fields(passage, {"number": str(number), "title": title, "text": text})
        for number, (title, text) in enumerate(passages, start=1)
    ]
    values = {"question": example["question"], "thoughts": " ".join(example["thoughts"]), "answer": example["answer"]}
    return _fill_fields(form, {**values, "passages": "".join(f"{text}\n\n" for text in shown)})


@lru_cache(maxsize=1)
def _package_examples() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Name of a TOML file in the folder `templates` -> its examples: question, gold, others, thoughts, answer."""
    files = (resources.files(PACKAGE) / "templates").iterdir()
    return {
        file.name.removesuffix(".toml"): tomllib.loads(file.read_text(encoding="utf-8"))["demonstration"]
        for file in files
        if file.name.endswith(".toml")
    }


def template_names(package: str = PACKAGE) -> Set[str]:
    """Names of the templates that an arm of the package may use."""
    return _package_templates(package).keys()


def fit_template(
    template: Template,
    *,
    fields: Mapping[str, str],
    generator: Generator,
    max_tokens: int,
    passages: Sequence[Passage] = (),
    passage_words: int = 350,
    history: Sequence[Message] = (),
) -> FittedPrompt:
    """Fill the template, and shorten it to the model's context minus `max_tokens` (PACKED_TOKENS if it is unknown).

    Every passage is cut to `passage_words` words. While the prompt is too long, one part after the other is dropped:
    demonstrations from the first (as in the papers), then messages of `history` from the oldest (system messages last),
    then passages from the last. The papers' code cuts lines from the top instead, and with them the best evidence.

    Raises PromptTooLong if the prompt is still too long for a known context; QuestionTooLong instead if the longest
    field contains the question, and the prompt would fit without it. Raises ConfigError for a field without a value.
    """
    unfilled = sorted(template.fields - set(fields))
    if unfilled:
        message = f"has the field {{{unfilled[0]}}}, for which there is no value"
        remedy = f"there are: {', '.join(f'{{{name}}}' for name in sorted({*fields, *_OWN_FIELDS}))}"
        raise ConfigError(message, field=f"templates.{template.name}", remedy=remedy)
    losses: list[str] = []
    demonstrations = list(template.demonstrations)
    shown, messages = list(passages), [message for message in history if message.text.strip()]
    turns = len(messages)
    texts = [_cut_passage(passage, words=passage_words, losses=losses) for passage in shown]
    room = (generator.context_tokens or PACKED_TOKENS + max_tokens) - max_tokens
    while True:
        prompt = _fill_template(template, fields=fields, demonstrations=demonstrations, passages=shown, texts=texts)
        prompt = replace(prompt, history=tuple(messages)) if messages else prompt
        size = generator.count_tokens(prompt)
        if size <= room:
            return FittedPrompt(prompt=prompt, passages=tuple(shown), losses=tuple(losses))
        if demonstrations:
            number = len(template.demonstrations) - len(demonstrations) + 1
            demonstrations.pop(0)
            losses.append(f"demonstration {number} of {len(template.demonstrations)} dropped")
        elif messages:
            oldest = next((position for position, message in enumerate(messages) if message.role != "system"), 0)
            messages.pop(oldest)
            losses.append(f"message {turns - len(messages)} of {turns} of the conversation dropped")
        elif shown:
            texts.pop()
            losses.append(f"passage {shown.pop().id} dropped")
        elif generator.context_tokens is None:  # the server decides whether the prompt fits
            return FittedPrompt(prompt=prompt, passages=(), losses=tuple(losses))
        else:
            raise _too_long(template, fields=fields, generator=generator, size=size, room=room)


def _too_long(
    template: Template, *, fields: Mapping[str, str], generator: Generator, size: int, room: int
) -> PromptTooLong:
    question = fields.get("question", "")
    longest = max(fields, key=lambda name: len(fields[name]), default=None)
    # Other fields may contain the question too, for example a list of earlier queries.
    without = {name: value.replace(question, "", 1) for name, value in fields.items()}
    bare = generator.count_tokens(_fill_template(template, fields=without, demonstrations=(), passages=(), texts=()))
    is_question = longest is not None and question in fields[longest] and bare <= room
    kind = QuestionTooLong if is_question else PromptTooLong
    return kind(
        f"the prompt has {size} tokens without any passage, and the model has room for {room}",
        field="question" if is_question else longest,
        remedy="shorten it, lower the arm's max_tokens, or raise the generator's context_tokens",
    )


def _cut_passage(passage: Passage, *, words: int, losses: list[str]) -> str:
    text, count = cut_words(passage.text, words=words)
    if count > words:
        losses.append(f"passage {passage.id} cut to {words} of {count} words")
    return text


def _fill_template(
    template: Template,
    *,
    fields: Mapping[str, str],
    demonstrations: Sequence[str],
    passages: Sequence[Passage],
    texts: Sequence[str],
) -> Prompt:
    shown = [
        _fill_fields(template.passage, {"number": str(number), "title": passage.title, "text": text})
        for number, (passage, text) in enumerate(zip(passages, texts, strict=True), start=1)
    ]
    values = {
        **fields,
        # Each block includes the blank line after it, so that a missing block leaves no gap.
        "demonstrations": "".join(f"{text}\n\n" for text in demonstrations),
        "passages": "".join(f"{text}\n\n" for text in shown),
    }
    return Prompt(
        instructions=_fill_fields(template.instructions, values),
        body=_fill_fields(template.body, values),
        prefix=_fill_fields(template.prefix, values),
    )


def _fill_fields(text: str, values: Mapping[str, str]) -> str:
    return _FIELD.sub(lambda match: values.get(match.group(1), match.group()), text).strip()


class PromptOptions(TypedDict, total=False):
    """Options of a prompt in addition to the fields of its template."""

    pool: PassagePool | None  #: pool whose passages are shown, unless `passages` is set
    passages: Sequence[Passage] | None
    passage_words: int  #: maximum number of words of a passage, 350 by default
    #: whether to include the earlier messages of the conversation; set it for the call that writes the answer
    conversation: bool


async def ask(
    run: Run,
    *,
    template: Template,
    purpose: str,
    fields: Mapping[str, str],
    max_tokens: int,
    stop: tuple[str, ...] = (),
    want: frozenset[Need] = frozenset(),
    final: Settle | None = None,
    **showing: Unpack[PromptOptions],
) -> Completion:
    """Fill the template (`fill_prompt`) and call the model (`Run.complete`). Raises the errors of both functions."""
    prompt = fill_prompt(run, template=template, fields=fields, max_tokens=max_tokens, **showing)
    return await run.complete(prompt, purpose=purpose, max_tokens=max_tokens, stop=stop, want=want, final=final)


def fill_prompt(
    run: Run, *, template: Template, fields: Mapping[str, str], max_tokens: int, **showing: Unpack[PromptOptions]
) -> Prompt:
    """Fill the template, and shorten it to fit the model, see `fit_template`. The run records the shown passages.

    The trace records everything that was removed as "prompt_budget".
    """
    pool, passages = showing.get("pool"), showing.get("passages")
    if passages is None and pool is not None:
        passages = pool.passages
    fitted = fit_template(
        template,
        fields=fields,
        generator=run.generator,
        max_tokens=max_tokens,
        passages=passages or (),
        passage_words=showing.get("passage_words", 350),
        history=run.query.messages if showing.get("conversation") else (),
    )
    for loss in fitted.losses:
        run.note_branch("prompt_budget", loss)
    run.note_shown(fitted.passages)
    return fitted.prompt

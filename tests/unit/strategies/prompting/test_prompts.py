"""Templates and the prompt budget."""

import asyncio

import pytest

from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.shared.types import Branch, Budget, Query
from ragbandit.strategies.base import Hit, Passage
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.prompting.passages import PassagePool
from ragbandit.strategies.prompting.prompts import ask, fit_template, load_templates, parsed_template
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from ragbandit.strategies.run import Run

OWN = """# header
[instructions]
Be short.
[demonstration]
demo one
[demonstration]
demo two
[passage]
{number}) {title} {text}
[body]
{demonstrations}{passages}Q {question}
[prefix]
A
"""
PASSAGES = [Passage(id=f"p{n}", title=f"T{n}", text="one two three four") for n in range(3)]


def loaded(name, *, given=None):
    return load_templates([name], overrides={} if given is None else {name: given})[name]


def own_template(text=OWN):
    return loaded("read_direct", given=text)


def fitted(*, context, passages=PASSAGES, question="why so", **settings):
    generator = ScriptedGenerator([], context_tokens=context)
    return fit_template(
        own_template(), fields={"question": question}, generator=generator, max_tokens=5, passages=passages, **settings
    )


@pytest.mark.parametrize(
    "name", ["recall_direct", "recall_reasoned", "read_direct", "read_reasoned", "think_quoted", "think_reasoned"]
)
def test_our_templates_are_filled_completely(name):
    """No field of our own templates is left open, and no header line reaches the model."""
    template = loaded(name)
    fields = dict.fromkeys(template.fields, "VALUE")
    prompt = fit_template(
        template, fields=fields, generator=ScriptedGenerator([]), max_tokens=5, passages=PASSAGES
    ).prompt
    whole = f"{prompt.instructions}\n{prompt.body}\n{prompt.prefix}"
    assert template.fields <= {"question", "thoughts"}
    assert "{" not in whole
    assert "#" not in whole
    assert ("one two three four" in whole) == template.takes_passages


def test_everything_that_fits_is_in_the_prompt_in_order():
    """Demonstrations, numbered passages and the question follow each other with nothing lost."""
    found = fitted(context=1000)
    assert found.losses == ()
    assert found.prompt.body == (
        "demo one\n\ndemo two\n\n1) T0 one two three four\n\n2) T1 one two three four\n\n"
        "3) T2 one two three four\n\nQ why so"
    )
    assert (found.prompt.instructions, found.prompt.prefix) == ("Be short.", "A")


def test_demonstrations_go_first_then_passages_from_the_end():
    """Under a shrinking context demonstrations are dropped from the first, then whole passages from the last."""
    assert fitted(context=5 + 28).losses == ()
    assert fitted(context=5 + 27).losses == ("demonstration 1 of 2 dropped",)
    assert fitted(context=5 + 23).losses == (
        "demonstration 1 of 2 dropped",
        "demonstration 2 of 2 dropped",
        "passage p2 dropped",
    )
    least = fitted(context=5 + 6)
    assert least.passages == ()
    assert least.prompt.body == "Q why so"


def test_a_question_that_cannot_fit_is_an_error_that_names_it():
    """If not even the bare question fits, the arm fails, naming the field, the sizes and the remedy."""
    with pytest.raises(ArmFailed, match=r"question: the prompt has 6 tokens .* room for 5 .*max_tokens"):
        fitted(context=10)


def test_long_passages_are_cut_and_the_cut_is_reported():
    """A passage is shown up to passage_words words, and losses name the cut."""
    found = fitted(context=1000, passages=PASSAGES[:1], passage_words=2)
    assert "T0 one two\n" in found.prompt.body
    assert found.losses == ("passage p0 cut to 2 of 4 words",)


def test_braces_in_values_are_plain_text():
    """A question or passage that looks like a template is shown as it is."""
    tricky = [Passage(id="x", title="{question}", text="{passages} {0} {")]
    body = fitted(context=1000, passages=tricky, question="{text} {title}").prompt.body
    assert "1) {question} {passages} {0} {" in body
    assert body.endswith("Q {text} {title}")


def test_an_override_may_be_a_file(tmp_path):
    """A Path, or any string of one line, names a file, whatever its suffix."""
    for name in ("mine.txt", "mine.md", "mine"):
        file = tmp_path / name
        file.write_text(OWN, encoding="utf-8")

        for given in (file, str(file)):
            assert loaded("read_direct", given=given) == own_template()


@pytest.mark.parametrize(
    "given", ["my.md", "my prompt", "[body]{passages}{question}", "tp/my", "a\x00b", "x" * 5000, "."]
)
def test_one_line_that_is_no_file_is_said_to_be_none(given, tmp_path, monkeypatch):
    """A template has at least two lines: a single line is a path, and the error names the missing file."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        own_template(given)
    assert caught.value.field == "templates.read_direct"
    shown = given if len(given) <= 200 else f"{given[:200]}..."
    assert f"{shown!r} cannot be read: " in str(caught.value)
    assert "one line is the path" in caught.value.remedy
    if given == "tp/my":
        assert f"there is no {tmp_path}/tp/my" in str(caught.value)


def test_an_own_template_may_have_fields_of_its_own():
    """An arm that is not ours asks with whatever fields it fills in; a broken text names the template."""
    template = parsed_template("[body]\n{passages}{question} {Hint}", name="mine")
    prompt = fit_template(
        template, fields={"question": "q", "Hint": "h"}, generator=ScriptedGenerator([]), max_tokens=5
    ).prompt
    assert (template.name, template.fields, prompt.body) == ("mine", {"question", "Hint"}, "q h")
    with pytest.raises(ConfigError, match=r"templates\.mine: the template has no section \[body\]"):
        parsed_template("[instructions]\nx", name="mine")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[body]\n{passages}no field", r"templates\.read_direct: has the fields \[\].*\{passages\}, \{question\}"),
        ("[body]\n{question}", "has the fields"),
        ("[body]\n{passages}{question}{extra}", "extra"),
        ("[body]\n{passages}{question}{Question}", r"has the fields \['Question', 'question'\] \(use exactly these"),
        ("[body]\n{passages}{question}{q1}", r"\['q1', 'question'\]"),
        ("[body]\n{passages}{question}{frage_ü}", "'frage_ü'"),
        (
            "[passage]\n{text}{url}\n[body]\n{passages}{question}",
            r"\[passage\] has the unknown field \{url\} .*\{title\}, \{text\}",
        ),
        ("[passage]\n{Text}\n[body]\n{passages}{question}", r"\[passage\] has the unknown field \{Text\}"),
        ("[instructions]\nx", "no section"),
        ("stray\n[body]\n{passages}{question}", "line 1 is before"),
        ("[body]\n{passages}{question}\n[body]\nagain", "has 2 sections"),
        ("missing.txt", r"'missing\.txt' cannot be read"),
    ],
)
def test_a_broken_override_is_refused(text, message):
    """An override must parse, exist and use exactly the fields of ours."""
    with pytest.raises(ConfigError, match=message):
        own_template(text)


def test_unknown_templates_are_refused():
    """A name we do not have, and an override that the arm would never use, are errors that list the known ones."""
    with pytest.raises(ConfigError, match=r"known: .*read_direct, "):
        loaded("reed")
    with pytest.raises(ConfigError, match=r"arms\.x\.templates\.reed: this template is not used .*used: think"):
        load_templates(["think_reasoned"], overrides={"reed": OWN}, field="arms.x.templates")


def test_asking_writes_losses_and_shown_passages_down():
    """Every loss becomes a prompt_budget branch, and only passages that stayed in the prompt count as shown."""
    run = Run(
        query=Query(text="q"),
        retriever=MemoryRetriever([]),
        generator=ScriptedGenerator(["ok"], context_tokens=33),
        budget=Budget(),
    )
    pool = PassagePool(cap=3)
    texts = ["one two three four", "five six seven eight", "red green blue black"]
    pool.add(Hit(passage=Passage(id=f"p{n}", title=f"T{n}", text=text), score=1.0) for n, text in enumerate(texts))
    done = asyncio.run(
        ask(run, template=own_template(), purpose="read", fields={"question": "q " * 7}, pool=pool, max_tokens=5)
    )
    assert (done.text, done.finish) == ("ok", "stop")
    assert [event.value for event in run.trace if isinstance(event, Branch)] == [
        "demonstration 1 of 2 dropped",
        "demonstration 2 of 2 dropped",
        "passage p2 dropped",
    ]
    assert run.cost.passages == 2


def test_a_context_that_is_not_known():
    """Passages are packed into a usual context; a question that is longer is sent, since the server may take it."""
    many = [Passage(id=f"p{n}", title="", text="one two three four " * 500) for n in range(40)]
    packed = fitted(context=None, passages=many)
    assert 0 < len(packed.passages) < len(many)
    long = fitted(context=None, passages=many, question="why " * 10_000)
    assert (long.passages, "why why" in long.prompt.body) == ((), True)

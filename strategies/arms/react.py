"""ReAct: thoughts and actions in turns: search the corpus, look a word up in what was found, finish."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies.arm_parts.params import Count, ReaderParams, preset_table
from ragbandit.strategies.arm_parts.prompted import PromptedArm
from ragbandit.strategies.arm_parts.steps import find, gather_once, stop_reason
from ragbandit.strategies.base import Completion
from ragbandit.strategies.prompting.passages import PassagePool, extract_answer, first_sentence, has_answer
from ragbandit.strategies.prompting.prompts import Template, fit
from ragbandit.strategies.run import Answer, Run

_ACTION_LINE = re.compile(r"\baction\s*+(?:\d++\s*+)?:", re.IGNORECASE)
_ACTION = re.compile(r"[\s\"'`*]*(?P<verb>[A-Za-z]\w*)\s*(?:\[(?P<square>[^\n]*)|\((?P<round>[^\n]*))")
#: what is not the model's to write
_NEXT_TURN = ("\nObservation", "\nQuestion")
_ALLOWED = "Write search[topic], lookup[word] or finish[answer]."


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """An action that the model asks for."""

    #: lower case; any word, those that nobody knows included
    verb: str
    #: without brackets and wrapping quotes; may be empty
    argument: str


def parsed_action(text: str) -> Action | None:
    """The action at the start of a text, "search[Jaws]" for example; None if there is none.

    The argument ends with the last closing bracket of its line, or with the line where there is none. Round brackets
    are taken for square ones, and quotes around the argument are dropped.
    """
    match = _ACTION.match(text)
    if match is None:
        return None
    inside, closing = (match["round"], ")") if match["square"] is None else (match["square"], "]")
    end = inside.rfind(closing)
    argument = (inside if end < 0 else inside[:end]).strip().strip("\"'`").strip()
    return Action(verb=match["verb"].lower(), argument=argument)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReactParams(ReaderParams):
    """Settings of react."""

    #: "small" is for local models of a few hundred million parameters; "paper" is ReAct's numbers;
    #: "chat" is for large chat models: its finish[...] stays short, its reader writes a paragraph
    preset: Literal["small", "paper", "chat"] = "small"
    #: what is answered when the turns end without finish[...]: what a reader says to the passages found, the latest
    #: thought, or nothing, as in the paper
    unfinished: Literal["read", "thought", "nothing"] = "read"
    #: thoughts with an action
    turns: Count = 4
    #: passages that one search asks for
    passages_per_search: Count = 3
    #: passages held over all searches; when full, the first ones stay
    passages: Count = 8
    #: sentences of the best passage in an observation
    sentences: Count = 2
    #: tokens of one thought with its action
    turn_tokens: Count = 64

    presets: ClassVar = preset_table(
        "max_tokens style turns passages_per_search passages sentences turn_tokens",
        paper=(100, "direct", 7, 5, 35, 5, 100),
        chat=(512, "long", 6, 4, 20, 4, 200),
    )


class React(PromptedArm[ReactParams]):
    """Turns of a thought and an action, each answered by an observation (Yao et al. 2023, ReAct).

    search[topic] shows the first sentences of the best passage and the titles of the others; a passage whose title
    is the topic is the best one. lookup[word] shows the next sentence with the word in the passages found so far.
    finish[answer] ends the arm ("finished"). A turn without an action is repaired by one call for the action alone;
    both failures are counted as "parse_failed". What is no action, or an empty one, is answered by what is allowed.

    Only a search begins a round, so the steps are the searches. Without finish[...] the turns end with "max_turns",
    with "no_action" after two turns in a row without an action, or with "budget_rounds" at a search that the budget's
    rounds do not allow; then the param `unfinished` says what is answered. Before its reader reads nothing, the
    question is searched. An answer without words is "empty_answer". Until then the draft is the latest thought.
    Differences to the paper's code: an empty action does not crash, and turns that do not fit the model's context
    are left out from the first, which the trace tells.
    """

    kind = ReactParams
    prompts: ClassVar = {"step": "react_step", "read": "read_{style}"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Take turns until finish[...], else answer as the settings say."""
        library = _Library(pool=PassagePool(cap=run.passage_cap(self._params.passages)))
        turns: list[str] = []
        ended, unreadable = "max_turns", 0
        while len(turns) < self._params.turns:
            thought, action = await self._think(question, turns=turns, run=run)
            run.draft = (extract_answer(thought) if has_answer(thought) else thought) or run.draft
            if action is not None and action.verb == "finish" and action.argument:
                answer = extract_answer(action.argument)
                return Answer(text=answer, stop_reason=stop_reason(answer, otherwise="finished"))
            unreadable = unreadable + 1 if action is None else 0
            if unreadable > 1:
                ended = "no_action"
                break
            observation = await self._observe(action, run=run, library=library)
            if observation is None:
                ended = "budget_rounds"
                break
            turns.append(_turn(len(turns) + 1, thought=thought, action=action, observation=observation))
        run.note_branch("turns_ended", ended)
        return await self._answer_unfinished(question, ended=ended, run=run, library=library)

    async def _think(self, question: str, *, turns: Sequence[str], run: Run) -> tuple[str, Action | None]:
        """One line of thought and the action; the action is asked for again if it cannot be read."""
        start = f"Thought {len(turns) + 1}:"
        done = await self._continue(question, turns=turns, start=start, purpose="think", run=run, stop=_NEXT_TURN)
        line = _ACTION_LINE.search(done.text)
        written = done.text[: line.start()] if line else done.text
        thought = next((each.strip() for each in written.splitlines() if each.strip()), "")
        action = parsed_action(done.text[line.end() :]) if line else None
        if action is None:
            run.note_branch("parse_failed", f"no action in: {done.text[:200]}")
            start = f"{start} {thought}\nAction {len(turns) + 1}:"
            done = await self._continue(question, turns=turns, start=start, purpose="repair", run=run, stop=("\n",))
            action = parsed_action(done.text)
            if action is None:
                run.note_branch("parse_failed", f"no action in: {done.text[:200]}")
        return thought, action

    async def _continue(
        self, question: str, *, turns: Sequence[str], start: str, purpose: str, run: Run, stop: tuple[str, ...]
    ) -> Completion:
        fields = {"question": question, "transcript": "", "start": start}
        max_tokens = self._params.turn_tokens
        fitting = _fitting(turns, template=self._templates["step"], fields=fields, run=run, max_tokens=max_tokens)
        fields["transcript"] = "\n".join(fitting)
        return await self._ask(
            "step", fields, run=run, purpose=purpose, max_tokens=max_tokens, stop=stop, conversation=True
        )

    async def _observe(self, action: Action | None, *, run: Run, library: "_Library") -> str | None:
        """The library's reply; None if the budget allows no further search."""
        if action is None or action.verb not in ("search", "lookup", "finish"):
            run.note_branch("unknown_action", "none" if action is None else action.verb)
            return f"That is no action. {_ALLOWED}"
        if not action.argument:
            run.note_branch("empty_action", action.verb)
            return f"There is nothing in the brackets. {_ALLOWED}"
        if action.verb == "lookup":
            return library.look_up(action.argument, run=run)
        if not run.begin_round(cap=self._params.turns):
            return None
        return await self._search(action.argument, run=run, library=library)

    async def _search(self, topic: str, *, run: Run, library: "_Library") -> str:
        passages = await find(run, query=topic, pool=library.pool, k=self._params.passages_per_search)
        if not passages:
            return f"The library has nothing new on {topic}."
        best = next((each for each in passages if each.title.casefold() == topic.casefold()), passages[0])
        run.note_shown([best])
        run.show(library.pool.note_shown([best]))
        sentences = [
            sentence for sentence, _ in zip(_sentences(best.text), range(self._params.sentences), strict=False)
        ]
        others = dict.fromkeys(each.title for each in passages if each.title != best.title)
        return f"{best.title}: {' '.join(sentences)}" + (f" (See also: {'; '.join(others)})" if others else "")

    async def _answer_unfinished(self, question: str, *, ended: str, run: Run, library: "_Library") -> Answer:
        if self._params.unfinished == "nothing":
            return Answer(text="", stop_reason=ended)
        if self._params.unfinished == "thought":
            answer = run.draft or ""
            return Answer(text=answer, stop_reason=stop_reason(answer, otherwise=ended))
        if not library.pool.passages:
            most, cap = self._params.passages_per_search, self._params.turns + 1
            await gather_once(run, query=question, pool=library.pool, k=most, cap=cap)
        answer = await self._read(question, run=run, style=self._params.style, pool=library.pool)
        return Answer(text=answer, stop_reason=stop_reason(answer, otherwise=ended))


@dataclass(kw_only=True, slots=True)
class _Library:
    """The passages one question has found, and the place where the reader of them stands."""

    pool: PassagePool
    _word: str = ""
    _seen: int = 0

    def look_up(self, word: str, *, run: Run) -> str:
        """The next sentence with the word, ignoring case; a new word begins at the first passage."""
        if word.casefold() != self._word:
            self._word, self._seen = word.casefold(), 0
        matches = [
            (passage, sentence)
            for passage in self.pool.passages
            for sentence in _sentences(passage.text)
            if self._word in sentence.casefold()
        ]
        if self._seen >= len(matches):
            return f"No {'more ' if matches else ''}sentence has the word {word}."
        passage, sentence = matches[self._seen]
        self._seen += 1
        run.note_shown([passage])
        run.show(self.pool.note_shown([passage]))
        return f"{passage.title}: {sentence} (sentence {self._seen} of {len(matches)})"


def _turn(number: int, *, thought: str, action: Action | None, observation: str) -> str:
    written = "" if action is None else f"Action {number}: {action.verb}[{action.argument}]\n"
    # A title with a line break in it could pass for a turn of the model's own.
    return f"Thought {number}: {thought}\n{written}Observation {number}: {' '.join(observation.split())}"


def _sentences(text: str) -> Iterator[str]:
    rest = text.lstrip()
    while rest:
        sentence = first_sentence(rest)
        yield sentence
        rest = rest[len(sentence) :].lstrip()


def _fitting(
    turns: Sequence[str], *, template: Template, fields: Mapping[str, str], run: Run, max_tokens: int
) -> Sequence[str]:
    """The latest turns that fit the model's context; each one left out is told to the trace."""
    fitting = list(turns)
    while True:
        try:
            filled = {**fields, "transcript": "\n".join(fitting)}
            fit(template, fields=filled, generator=run.generator, max_tokens=max_tokens)
        except ArmFailed:
            if not fitting:
                raise
            fitting.pop(0)
            run.note_branch("prompt_budget", f"turn {len(turns) - len(fitting)} of {len(turns)} dropped")
        else:
            return fitting

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ragbandit.additions.research_arms.replies import sentences_in
from ragbandit.strategies.arm_parts.prompted import Count, PromptedArm, ReaderParams, preset_table
from ragbandit.strategies.arm_parts.steps import gather, gather_once, make_answer
from ragbandit.strategies.base import Completion
from ragbandit.strategies.failures import PromptTooLong
from ragbandit.strategies.prompting.passages import PassagePool, extract_answer, has_answer
from ragbandit.strategies.run import Answer, Run

_ACTION_LINE = re.compile(r"\baction\s*+(?:\d++\s*+)?:", re.IGNORECASE)
_ACTION = re.compile(r"[\s\"'`*]*(?P<verb>[A-Za-z]\w*)\s*(?:\[(?P<square>[^\n]*)|\((?P<round>[^\n]*))")
_NEXT_TURN = ("\nObservation", "\nQuestion")  #: stop strings: the arm writes these lines, not the model
_ALLOWED = "Write search[topic], lookup[word] or finish[answer]."


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    verb: str  #: name of the action in lower case; may be unknown
    argument: str  #: text in the brackets, without its quotes; may be empty


def parse_action(text: str) -> Action | None:
    """Parse the action at the start of a text, for example "search[Jaws]" or "search(Jaws)". None without an action."""
    match = _ACTION.match(text)
    if match is None:
        return None
    inside, closing = (match["round"], ")") if match["square"] is None else (match["square"], "]")
    end = inside.rfind(closing)
    argument = (inside if end < 0 else inside[:end]).strip().strip("\"'`").strip()
    return Action(verb=match["verb"].lower(), argument=argument)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReactParams(ReaderParams):
    #: "paper" has ReAct's numbers, and an empty answer if the turns end. With "chat" the reader writes a paragraph, but
    #: the text in finish[...] stays short
    preset: Literal["small", "paper", "chat"] = "small"
    #: answer if the turns end without finish[...]. "read": a reader answers from the passages. "empty": the answer is
    #: empty and counts as wrong, as in the paper
    unfinished: Literal["read", "empty"] = "read"
    turns: Count = 4
    passages_per_search: Count = 3
    passages: Count = 8  #: maximum number of passages kept in all searches together; passages found later are dropped
    sentences: Count = 2  #: maximum number of sentences of the best passage that the model sees after a search
    turn_tokens: Count = 64

    presets: ClassVar = preset_table(
        "max_tokens style unfinished turns passages_per_search passages sentences turn_tokens",
        paper=(100, "direct", "empty", 7, 5, 35, 5, 100),
        chat=(512, "long", "read", 6, 4, 20, 4, 200),
    )
    later: ClassVar = {"unfinished": "read"}


class React(PromptedArm[ReactParams]):
    """Writes thoughts and actions in turns; every action is answered by an observation (Yao et al. 2023, ReAct).

    search[topic] shows the first sentences of the best passage and the titles of the others. A passage whose title is
    the topic counts as the best. lookup[word] shows the next sentence with the word in the passages found so far.
    finish[answer] ends the arm. If a turn has no action, one more call asks only for the action; each call without an
    action is a "parse_failed" in the trace. Only a search is a step. If the turns end without finish[...], the param
    `unfinished` decides. Stop reasons: "finished", "max_turns", "no_action" after two turns in a row without an action,
    "budget_rounds" if the budget does not allow another search, "empty_answer".

    Differences to the paper's code: an empty action does not crash; lookup reads all passages found, not only the
    latest; if the turns exceed the model's context, the oldest are dropped.
    """

    arm: ClassVar[str] = "react"
    example: ClassVar = {"unfinished": "read"}  # the contract wants an answer, whatever the model writes
    kind = ReactParams
    package = __package__
    prompts: ClassVar = {"step": "react_step", "read": "read_{style}"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        library = _Library(pool=PassagePool(cap=run.passage_cap(self._params.passages)))
        turns: list[str] = []
        stop_reason, unreadable = "max_turns", 0
        while len(turns) < self._params.turns:
            thought, action = await self._think(question, turns=turns, run=run)
            run.draft = (extract_answer(thought) if has_answer(thought) else thought) or run.draft
            if action is not None and action.verb == "finish" and action.argument:
                return make_answer(extract_answer(action.argument), "finished")
            unreadable = unreadable + 1 if action is None else 0
            if unreadable > 1:
                stop_reason = "no_action"
                break
            observation = await self._observe(action, run=run, library=library)
            if observation is None:
                stop_reason = "budget_rounds"
                break
            turns.append(_turn_text(len(turns) + 1, thought=thought, action=action, observation=observation))
        run.note_branch("turns_ended", stop_reason)
        return await self._answer_unfinished(question, stop_reason=stop_reason, run=run, library=library)

    async def _think(self, question: str, *, turns: Sequence[str], run: Run) -> tuple[str, Action | None]:
        start = f"Thought {len(turns) + 1}:"
        done = await self._continue(question, turns=turns, start=start, purpose="think", run=run, stop=_NEXT_TURN)
        line = _ACTION_LINE.search(done.text)
        written = done.text[: line.start()] if line else done.text
        thought = next((text_line.strip() for text_line in written.splitlines() if text_line.strip()), "")
        action = parse_action(done.text[line.end() :]) if line else None
        if action is None:
            run.note_branch("parse_failed", f"no action in: {done.text[:200]}")
            start = f"{start} {thought}\nAction {len(turns) + 1}:"
            done = await self._continue(question, turns=turns, start=start, purpose="repair", run=run, stop=("\n",))
            action = parse_action(done.text)
            if action is None:
                run.note_branch("parse_failed", f"no action in: {done.text[:200]}")
        return thought, action

    async def _continue(
        self, question: str, *, turns: Sequence[str], start: str, purpose: str, run: Run, stop: tuple[str, ...]
    ) -> Completion:
        """Let the model continue the turns. The oldest turns are dropped if not all fit the model's context."""
        options: dict[str, Any] = {"purpose": purpose, "max_tokens": self._params.turn_tokens, "stop": stop}
        for first in range(len(turns) + 1):
            fields = {"question": question, "transcript": "\n".join(turns[first:]), "start": start}
            try:
                return await self._ask("step", fields, run=run, conversation=True, **options)
            except PromptTooLong:
                if first == len(turns):
                    raise
                run.note_branch("prompt_budget", f"turn {first + 1} of {len(turns)} dropped")
        raise AssertionError("unreachable: the prompt without turns fits, or PromptTooLong is raised above")

    async def _observe(self, action: Action | None, *, run: Run, library: "_Library") -> str | None:
        """Do the action. Returns the observation; None if the budget allows no further search."""
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
        passages = await gather(run, query=topic, pool=library.pool, k=self._params.passages_per_search)
        if not passages:
            return f"The library has nothing new on {topic}."
        best = next((passage for passage in passages if passage.title.casefold() == topic.casefold()), passages[0])
        run.note_shown([best])
        sentences = sentences_in(best.text)[: self._params.sentences]
        others = dict.fromkeys(passage.title for passage in passages if passage.title != best.title)
        return f"{best.title}: {' '.join(sentences)}" + (f" (See also: {'; '.join(others)})" if others else "")

    async def _answer_unfinished(self, question: str, *, stop_reason: str, run: Run, library: "_Library") -> Answer:
        if self._params.unfinished == "empty":
            return Answer(text="", stop_reason=stop_reason)
        if not library.pool.passages:
            k, cap = self._params.passages_per_search, self._params.turns + 1
            await gather_once(run, query=question, pool=library.pool, k=k, cap=cap)
        return make_answer(await self._read(question, run=run, pool=library.pool), stop_reason)


@dataclass(kw_only=True, slots=True)
class _Library:
    """The passages found for a question, with the position of lookup[...] in them."""

    pool: PassagePool
    _term: str = ""
    _shown: int = 0  #: number of sentences with `_term` that were shown

    def look_up(self, term: str, *, run: Run) -> str:
        """The next sentence that contains the term, ignoring case. A new term is searched from the first passage."""
        if term.casefold() != self._term:
            self._term, self._shown = term.casefold(), 0
        matches = [
            (passage, sentence)
            for passage in self.pool.passages
            for sentence in sentences_in(passage.text)
            if self._term in sentence.casefold()
        ]
        if self._shown >= len(matches):
            return f"No {'more ' if matches else ''}sentence has the word {term}."
        passage, sentence = matches[self._shown]
        self._shown += 1
        run.note_shown([passage])
        return f"{passage.title}: {sentence} (sentence {self._shown} of {len(matches)})"


def _turn_text(number: int, *, thought: str, action: Action | None, observation: str) -> str:
    written = "" if action is None else f"Action {number}: {action.verb}[{action.argument}]\n"
    # The observation becomes one line: a title with a line break could look like a turn of the model.
    return f"Thought {number}: {thought}\n{written}Observation {number}: {' '.join(observation.split())}"

"""Arms that search a fixed number of times, or never, and then answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ragbandit.strategies.arms.prompted import (
    ArmParams,
    Count,
    ParamsArm,
    PassageParams,
    PromptedArm,
    PromptParams,
    ReaderParams,
    preset_table,
)
from ragbandit.strategies.arms.steps import AnswerStyle, Style, finished, gather, gather_once, partial_kept
from ragbandit.strategies.base import PACKED_TOKENS, Need, Passage, Prompt, PromptTooLong
from ragbandit.strategies.prompting.passages import (
    PassagePool,
    extract_answer,
    first_sentence,
    has_answer,
    last_query,
    parsed_numbered_labels,
)
from ragbandit.strategies.prompting.prompts import Template, ask
from ragbandit.strategies.run import Answer, Run

#: where nothing limits an answer, it may have the context divided by this
_ANSWERS_SHARE = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class NoRetrievalParams(PromptParams):
    """Settings of no_retrieval."""

    preset: Literal["small", "flan", "gpt", "chat"] = "small"
    style: Style = "direct"

    presets: ClassVar = preset_table(
        "max_tokens style",
        flan=(200, "direct"),
        gpt=(300, "reasoned"),
        chat=(512, "long"),
    )


class NoRetrieval(PromptedArm[NoRetrievalParams]):
    """Answer from the model's own knowledge: one call, no search, no step (Adaptive-RAG's "A")."""

    retrieves: ClassVar[bool] = False
    kind = NoRetrievalParams
    prompts: ClassVar = {"answer": "recall_{style}"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Ask once; stops with "answered", or "empty_answer" if the model said nothing usable."""
        return finished(await self._read(question, run=run, use="answer"), "answered")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelParams(ArmParams):
    """Settings of model."""

    #: tokens of an answer whose request names no limit; None: as many as the server likes
    max_tokens: Count | None = None
    #: words of the system for questions that come without any; of a chat, which has its own, none are added
    instructions: str = ""


class Model(ParamsArm[ModelParams]):
    """A model and nothing else: no search, no prompt of ours, no step.

    A chat completion that came over OpenAI's interface goes to an OpenAI-compatible generator as its caller sent it,
    with tools, images, formats and sampling, and its reply goes back the same way. Any other question, and one for
    another generator, is sent as it stands, after what was said before.
    """

    needs: frozenset[Need] = frozenset({"completion"})
    retrieves: ClassVar[bool] = False

    kind = ModelParams

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        # The question stands for itself: nothing is put around it.
        parts = {"demonstrations": (), "passage": "", "body": "{question}", "prefix": ""}
        self._template = Template(name="chat", instructions=self._params.instructions, **parts)  # type: ignore[arg-type]

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Ask once; stops with "answered", "empty_answer", or the server's reason where it is not an ordinary end."""
        sent, most = run.query.chat, self._params.max_tokens
        with partial_kept(run, style="long"):
            if sent and "chat" in run.generator.capabilities:
                prompt = Prompt(instructions="", body=question, history=run.query.messages)
                done = await run.chat(sent, prompt=prompt, max_tokens=most)
            else:
                asked: dict[str, Any] = {"fields": {"question": question}, "final": str, "conversation": True}
                asked["max_tokens"] = most or max(1, (run.generator.context_tokens or PACKED_TOKENS) // _ANSWERS_SHARE)
                done = await ask(run, template=self._template, purpose="chat", **asked)
        reason = str(run.reply.get("finish_reason") or "stop")
        return finished(done.text, "answered") if reason == "stop" else Answer(text=done.text, stop_reason=reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleStepParams(ReaderParams):
    """Settings of single_step."""

    preset: Literal["small", "flan", "gpt", "chat"] = "small"
    #: passages searched for and shown
    passages: Count = 3

    presets: ClassVar = preset_table(
        "max_tokens style passages",
        flan=(200, "direct", 15),
        gpt=(300, "reasoned", 6),
        chat=(512, "long", 5),
    )


class SingleStep(PromptedArm[SingleStepParams]):
    """Search once with the cleaned question, then read: one step (Adaptive-RAG's "B", IRCoT's OneR).

    If the budget allows no round or no passage, or the question consists of question words only, the search is
    skipped, which the trace says, and the model answers without passages.
    """

    kind = SingleStepParams
    prompts: ClassVar = {"read": "read_{style}"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Search, read, answer; stops with "answered" or "empty_answer"."""
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        await gather_once(run, query=question, pool=pool, k=self._params.passages)
        return finished(await self._read(question, run=run, pool=pool), "answered")


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiStepParams(ReaderParams):
    """Settings of multi_step."""

    preset: Literal["small", "flan", "gpt", "chat"] = "small"
    #: how a sentence of the chain is asked for: "quoted" from the passages, or "reasoned" as in the paper
    think: Literal["quoted", "reasoned"] = "quoted"
    #: search-and-think rounds
    rounds: Count = 3
    #: passages searched for in each round
    passages_per_round: Count = 2
    #: passages held over all rounds; when full, the first ones stay
    passages: Count = 6
    #: tokens of one sentence of the chain
    sentence_tokens: Count = 48

    presets: ClassVar = preset_table(
        "max_tokens style think rounds passages_per_round passages sentence_tokens",
        flan=(200, "direct", "reasoned", 10, 6, 15, 200),
        gpt=(300, "reasoned", "reasoned", 10, 3, 15, 300),
        chat=(512, "long", "reasoned", 4, 3, 10, 128),
    )


class MultiStep(PromptedArm[MultiStepParams]):
    """Rounds of search and one sentence of thought; then a separate reader answers from the passages gathered.

    A round searches with the last sentence that states something (the question in the first), adds the hits to
    the pool and asks for the next sentence. The chain ends at a sentence with "answer is" ("answer_found"), at
    an empty one ("empty_sentence"), when its next prompt has no room for it ("thoughts_too_long"), or when the rounds
    are used up ("max_rounds", or "budget_rounds" where the budget's cap was the smaller). The chain is thrown away:
    the reader sees the passages and the question only. Until it has answered, the draft is the chain's own answer, or
    its latest sentence.
    """

    kind = MultiStepParams
    prompts: ClassVar = {"think": "think_{think}", "read": "read_{style}"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Interleave, then read."""
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        ended = await self._gather_by_thinking(question, run=run, pool=pool)
        run.note_branch("chain_ended", ended)
        return finished(await self._read(question, run=run, pool=pool), ended)

    async def _gather_by_thinking(self, question: str, *, run: Run, pool: PassagePool) -> str:
        """Fill the pool; the rule that ended the chain."""
        sentences: list[str] = []
        while run.begin_round(cap=self._params.rounds):
            query = last_query(question, sentences=sentences)
            await gather(run, query=query, pool=pool, k=self._params.passages_per_round)
            try:
                sentence = await self._think(question, sentences=sentences, run=run, pool=pool)
            except PromptTooLong:
                if not sentences:
                    raise
                return "thoughts_too_long"
            if not sentence:
                return "empty_sentence"
            sentences.append(sentence)
            announced = has_answer(sentence)
            run.draft = (extract_answer(sentence) if announced else sentence) or run.draft
            if announced:
                return "answer_found"
        return "max_rounds" if len(sentences) >= self._params.rounds else "budget_rounds"

    async def _think(self, question: str, *, sentences: list[str], run: Run, pool: PassagePool) -> str:
        fields, most = {"question": question, "thoughts": " ".join(sentences)}, self._params.sentence_tokens
        with partial_kept(run, style="reasoned"):
            done = await self._ask("think", fields, run=run, max_tokens=most, pool=pool, stop=("\n",))
        return first_sentence(done.text)


_USEFUL = "useful"

#: all verdicts: what is asked for, and what small models say instead of useless
_VERDICTS = (_USEFUL, "useless", "not useful")


@dataclass(frozen=True, kw_only=True, slots=True)
class NoteParams(PassageParams):
    """Settings of chain_of_note, self_refine and self_rerank."""

    preset: Literal["small", "paper", "chat"] = "small"
    #: of the final reader
    style: AnswerStyle = "short"
    #: passages searched for and shown
    passages: Count = 3
    #: tokens of the notes, the summary or the verdicts
    note_tokens: Count = 96

    presets: ClassVar = preset_table(
        "max_tokens style passages note_tokens",
        paper=(1280, "short", 5, 1280),
        chat=(512, "long", 5, 512),
    )


class _TwoStages(PromptedArm[NoteParams]):
    """Search once, a first stage over the passages, a reader: one step, two calls.

    Without passages (the budget allows no round or none, or nothing was found) the first stage is skipped, which
    the trace says, and the reader answers alone. Stops with "answered" or "empty_answer".
    """

    kind = NoteParams

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Search, write, read."""
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        await gather_once(run, query=question, pool=pool, k=self._params.passages)
        text = ""
        if pool.passages:
            most, purpose = self._params.note_tokens, self._templates["stage"].name
            fields = {"question": question}
            done = await self._ask("stage", fields, run=run, purpose=purpose, max_tokens=most, pool=pool)
            text = done.text.strip()
        else:
            run.note_branch("first_stage_skipped", "there is no passage")
        return finished(await self._answer_from(text, question=question, run=run, pool=pool), "answered")

    async def _answer_from(self, text: str, *, question: str, run: Run, pool: PassagePool) -> str:  # noqa: ARG002 SelfRerank's
        run.draft = (extract_answer(text) if has_answer(text) else text) or run.draft
        fields = {"question": question, "notes": text or "none"}
        return await self._read(question, run=run, fields=fields)


class ChainOfNote(_TwoStages):
    """Notes on every passage and what they are worth, then the answer from the notes."""

    prompts: ClassVar = {"stage": "chain_of_note", "read": "read_notes_{style}"}


class SelfRefine(_TwoStages):
    """A summary and analysis of what is useful in the passages, then the answer from it."""

    prompts: ClassVar = {"stage": "self_refine", "read": "read_notes_{style}"}


class SelfRerank(_TwoStages):
    """A verdict on every passage, useful or useless, then the answer from the useful ones.

    Passages without a verdict are written into the trace as "parse_failed" and not kept. If no passage has a
    verdict, or none is useful, all are kept; the trace says which of the two as "kept_all".
    """

    prompts: ClassVar = {"stage": "self_rerank", "read": "read_direct"}

    def _template_names(self) -> dict[str, str]:
        return super()._template_names() | ({"read": "read_long"} if self._params.style == "long" else {})

    async def _answer_from(self, text: str, *, question: str, run: Run, pool: PassagePool) -> str:
        # The first verdict may have been begun for the model.
        passages = _useful(f"{self._templates['stage'].prefix} {text}", run=run, passages=pool.passages)
        return await self._read(question, run=run, passages=passages)


def _useful(text: str, *, run: Run, passages: Sequence[Passage]) -> Sequence[Passage]:
    if not passages:
        return ()
    labels = parsed_numbered_labels(text, labels=_VERDICTS, count=len(passages))
    numbered = list(enumerate(passages, start=1))
    unlabelled = [passage.id for number, passage in numbered if number not in labels]
    if unlabelled:
        run.note_branch(
            "parse_failed", f"{len(unlabelled)} of {len(passages)} without verdict: {', '.join(unlabelled)}"
        )
    useful = [passage for number, passage in numbered if labels.get(number) == _USEFUL]
    if not useful:
        run.note_branch("kept_all", "none is useful" if labels else "no verdict")
        return passages
    run.note_branch("kept", ", ".join(passage.id for passage in useful))
    return useful

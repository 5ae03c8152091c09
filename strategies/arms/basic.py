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
from ragbandit.strategies.arms.steps import AnswerStyle, Style, finished, gather, gather_once, keep_partial
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


@dataclass(frozen=True, kw_only=True, slots=True)
class NoRetrievalParams(PromptParams):
    preset: Literal["small", "flan", "gpt", "chat"] = "small"
    style: Style = "direct"

    presets: ClassVar = preset_table(
        "max_tokens style", flan=(200, "direct"), gpt=(300, "reasoned"), chat=(512, "long")
    )


class NoRetrieval(PromptedArm[NoRetrievalParams]):
    """Answers with one call of the model, from the model's own knowledge: 0 steps (A in Adaptive-RAG's paper)."""

    retrieves: ClassVar[bool] = False
    kind = NoRetrievalParams
    prompts: ClassVar = {"answer": "recall_{style}"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Stop reasons: "answered", or "empty_answer" if the model's text contains no answer."""
        return finished(await self._read(question, run=run, use="answer"), "answered")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelParams(ArmParams):
    #: maximum number of tokens of an answer if the request sets no limit; None for the server's limit
    max_tokens: Count | None = None
    #: system message of the prompt. A chat that is forwarded unchanged has only its own system messages
    instructions: str = ""


class Model(ParamsArm[ModelParams]):
    """Sends the question to a model as it is, without a search and without a prompt around it: 0 steps.

    A chat completion from OpenAI's interface is forwarded unchanged to an OpenAI-compatible generator, with tools,
    images, formats and sampling, and its reply is returned unchanged. Other questions, and chats for other generators,
    are sent as plain text after the conversation so far.
    """

    needs: frozenset[Need] = frozenset({"completion"})
    retrieves: ClassVar[bool] = False
    kind = ModelParams

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        parts = {"demonstrations": (), "passage": "", "body": "{question}", "prefix": ""}
        self._template = Template(name="chat", instructions=self._params.instructions, **parts)  # type: ignore[arg-type]

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Stop reasons: "answered", "empty_answer", or the server's finish_reason if it is not "stop"."""
        chat, limit = run.query.chat, self._params.max_tokens
        with keep_partial(run, style="long"):
            if chat and "chat" in run.generator.capabilities:
                prompt = Prompt(instructions="", body=question, history=run.query.messages)
                done = await run.chat(chat, prompt=prompt, max_tokens=limit)
            else:
                options: dict[str, Any] = {"fields": {"question": question}, "final": str, "conversation": True}
                # Without a limit an answer gets a quarter of the model's context.
                limit = limit or max(1, (run.generator.context_tokens or PACKED_TOKENS) // 4)
                done = await ask(run, template=self._template, purpose="chat", max_tokens=limit, **options)
        reason = str(run.reply.get("finish_reason") or "stop")
        return finished(done.text, "answered") if reason == "stop" else Answer(text=done.text, stop_reason=reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleStepParams(ReaderParams):
    preset: Literal["small", "flan", "gpt", "chat"] = "small"
    passages: Count = 3

    presets: ClassVar = preset_table(
        "max_tokens style passages", flan=(200, "direct", 15), gpt=(300, "reasoned", 6), chat=(512, "long", 5)
    )


class SingleStep(PromptedArm[SingleStepParams]):
    """Searches once, then answers: 1 step (B in Adaptive-RAG's paper, OneR in IRCoT's).

    The search uses the question without question words. If no word is left, or if the budget allows no round or no
    passage, the model answers without a search. Stop reasons: "answered", "empty_answer".
    """

    kind = SingleStepParams
    prompts: ClassVar = {"read": "read_{style}"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        await gather_once(run, query=question, pool=pool, k=self._params.passages)
        return finished(await self._read(question, run=run, pool=pool), "answered")


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiStepParams(ReaderParams):
    preset: Literal["small", "flan", "gpt", "chat"] = "small"
    #: what the prompt for a sentence asks for: a quotation from the passages, or a thought as in the paper
    think: Literal["quoted", "reasoned"] = "quoted"
    rounds: Count = 3
    passages_per_round: Count = 2
    passages: Count = 6  #: maximum number of passages kept in all rounds together; passages found later are dropped
    sentence_tokens: Count = 48

    presets: ClassVar = preset_table(
        "max_tokens style think rounds passages_per_round passages sentence_tokens",
        flan=(200, "direct", "reasoned", 10, 6, 15, 200),
        gpt=(300, "reasoned", "reasoned", 10, 3, 15, 300),
        chat=(512, "long", "reasoned", 4, 3, 10, 128),
    )


class MultiStep(PromptedArm[MultiStepParams]):
    """Searches and writes a sentence of thought in each round; then a reader answers from the passages (IRCoT).

    The first round searches with the question, a later round with the latest sentence that is not mere reasoning (see
    `last_query`). Then the model writes the next sentence. The reader sees only the passages and the question, not the
    sentences. Stop reasons: "answer_found" (a sentence contains "answer is"), "empty_sentence", "thoughts_too_long"
    (the next prompt has no room for the sentences), "max_rounds", and "budget_rounds" if the budget allows fewer rounds
    than the param `rounds`.
    """

    kind = MultiStepParams
    prompts: ClassVar = {"think": "think_{think}", "read": "read_{style}"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        stop_reason = await self._gather_by_thinking(question, run=run, pool=pool)
        run.note_branch("chain_ended", stop_reason)
        return finished(await self._read(question, run=run, pool=pool), stop_reason)

    async def _gather_by_thinking(self, question: str, *, run: Run, pool: PassagePool) -> str:
        sentences: list[str] = []
        while run.begin_round(cap=self._params.rounds):
            query = last_query(question, sentences=sentences)
            await gather(run, query=query, pool=pool, k=self._params.passages_per_round)
            fields, limit = {"question": question, "thoughts": " ".join(sentences)}, self._params.sentence_tokens
            try:
                with keep_partial(run, style="reasoned"):
                    done = await self._ask("think", fields, run=run, max_tokens=limit, pool=pool, stop=("\n",))
            except PromptTooLong:
                if not sentences:
                    raise
                return "thoughts_too_long"
            sentence = first_sentence(done.text)
            if not sentence:
                return "empty_sentence"
            sentences.append(sentence)
            if has_answer(sentence):
                run.draft = extract_answer(sentence) or run.draft
                return "answer_found"
            run.draft = sentence
        return "max_rounds" if len(sentences) >= self._params.rounds else "budget_rounds"


_USEFUL = "useful"
_VERDICTS = (_USEFUL, "useless", "not useful")  #: accepted verdicts; small models write "not useful" for "useless"


@dataclass(frozen=True, kw_only=True, slots=True)
class NoteParams(PassageParams):
    preset: Literal["small", "paper", "chat"] = "small"
    style: AnswerStyle = "short"
    passages: Count = 3
    note_tokens: Count = 96  #: maximum number of tokens of the first call, which writes notes, a summary or verdicts

    presets: ClassVar = preset_table(
        "max_tokens style passages note_tokens", paper=(1280, "short", 5, 1280), chat=(512, "long", 5, 512)
    )


class _TwoStages(PromptedArm[NoteParams]):
    """Searches once, writes about the passages in a first call, and answers in a second call: 1 step.

    If there is no passage, the first call is skipped, and the trace records that. Stop reasons: "answered",
    "empty_answer".
    """

    kind = NoteParams

    async def answer(self, question: str, *, run: Run) -> Answer:
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        await gather_once(run, query=question, pool=pool, k=self._params.passages)
        text = ""
        if pool.passages:
            limit, purpose = self._params.note_tokens, self._templates["stage"].name
            fields = {"question": question}
            done = await self._ask("stage", fields, run=run, purpose=purpose, max_tokens=limit, pool=pool)
            text = done.text.strip()
        else:
            run.note_branch("first_stage_skipped", "there is no passage")
        return finished(await self._answer_from(text, question=question, run=run, pool=pool), "answered")

    async def _answer_from(self, text: str, *, question: str, run: Run, pool: PassagePool) -> str:  # noqa: ARG002 SelfRerank's
        run.draft = (extract_answer(text) if has_answer(text) else text) or run.draft
        return await self._read(question, run=run, fields={"question": question, "notes": text or "none"})


class ChainOfNote(_TwoStages):
    """Writes a note on every passage and its relevance, then answers from the notes."""

    prompts: ClassVar = {"stage": "chain_of_note", "read": "read_notes_{style}"}


class SelfRefine(_TwoStages):
    """Summarizes and analyses the useful parts of the passages, then answers from the summary."""

    prompts: ClassVar = {"stage": "self_refine", "read": "read_notes_{style}"}


class SelfRerank(_TwoStages):
    """Judges every passage as useful or useless, then answers from the useful ones.

    Passages without a verdict are left out, and recorded in the trace as "parse_failed". If no passage is judged
    useful, the arm answers from all passages, and the trace records "kept_all" with the reason.
    """

    prompts: ClassVar = {"stage": "self_rerank", "read": "read_direct"}

    def _template_names(self) -> dict[str, str]:
        return super()._template_names() | ({"read": "read_long"} if self._params.style == "long" else {})

    async def _answer_from(self, text: str, *, question: str, run: Run, pool: PassagePool) -> str:
        # The prompt may end with the beginning of the first verdict. So this prefix is parsed together with the reply.
        passages = _useful(f"{self._templates['stage'].prefix} {text}", run=run, passages=pool.passages)
        return await self._read(question, run=run, passages=passages)


def _useful(text: str, *, run: Run, passages: Sequence[Passage]) -> Sequence[Passage]:
    if not passages:
        return ()
    labels = parsed_numbered_labels(text, labels=_VERDICTS, count=len(passages))
    numbered = list(enumerate(passages, start=1))
    unlabelled = [passage.id for number, passage in numbered if number not in labels]
    if unlabelled:
        ids = ", ".join(unlabelled)
        run.note_branch("parse_failed", f"{len(unlabelled)} of {len(passages)} without verdict: {ids}")
    useful = [passage for number, passage in numbered if labels.get(number) == _USEFUL]
    if not useful:
        run.note_branch("kept_all", "none is useful" if labels else "no verdict")
        return passages
    run.note_branch("kept", ", ".join(passage.id for passage in useful))
    return useful

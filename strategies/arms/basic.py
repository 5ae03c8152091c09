from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ragbandit.shared.dialects.chat.message_parts import has_media
from ragbandit.shared.model_servers.efforts import Effort
from ragbandit.shared.texts.text_forms import is_blank
from ragbandit.shared.types import CUT, NO_TEXT, SPOKEN, Conversation, Message, transcript_of
from ragbandit.strategies.arm_parts.prompted import (
    ArmParams,
    Count,
    ParamsArm,
    PromptedArm,
    PromptParams,
    PromptSource,
    ReaderParams,
    preset_table,
)
from ragbandit.strategies.arm_parts.steps import Style, gather, gather_once, keep_partial, make_answer
from ragbandit.strategies.base import PACKED_TOKENS, Need, Prompt
from ragbandit.strategies.failures import PromptTooLong
from ragbandit.strategies.prompting.passages import PassagePool, extract_answer, first_sentence, has_answer, last_query
from ragbandit.strategies.prompting.prompts import Template, ask
from ragbandit.strategies.run import Answer, Run


@dataclass(frozen=True, kw_only=True, slots=True)
class NoRetrievalParams(PromptParams):
    preset: Literal["small", "flan", "gpt", "chat"] = "small"
    style: Style = "direct"
    prompts: PromptSource = "ours"

    presets: ClassVar = preset_table(
        "max_tokens style prompts",
        flan=(200, "direct", "paper"),
        gpt=(300, "reasoned", "paper"),
        chat=(512, "long", "ours"),
    )
    later: ClassVar = {"prompts": "ours"}


class NoRetrieval(PromptedArm[NoRetrievalParams]):
    """Answers with one call of the model, from the model's own knowledge: 0 steps (A in Adaptive-RAG's paper)."""

    arm: ClassVar[str] = "no_retrieval"
    retrieves: ClassVar[bool] = False
    kind = NoRetrievalParams
    prompts: ClassVar = {"answer": "recall_{style}"}
    paper_prompts: ClassVar = {"answer": "paper_recall_{style}"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Stop reasons: "answered", or "empty_answer" if the model's text contains no answer."""
        return make_answer(await self._read(question, run=run, use="answer"), "answered")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelParams(ArmParams):
    #: maximum number of tokens of an answer if the request sets no limit; None for the server's limit
    max_tokens: Count | None = None
    #: system message of the prompt. A chat that is forwarded unchanged has only its own system messages
    instructions: str = ""
    #: reasoning effort, sent as `reasoning_effort` unless the request has its own; None sends nothing
    effort: Effort | None = None

    later: ClassVar = {"effort": None}


class Model(ParamsArm[ModelParams]):
    """Sends the question to a model as it is, without a search and without a prompt around it: 0 steps.

    A chat completion from OpenAI's interface is forwarded unchanged to an OpenAI-compatible generator, with tools,
    images, formats and sampling, and its reply is returned unchanged. Other questions, and chats for other generators,
    are sent as plain text after the conversation so far. With the param `effort` every question is sent as a chat.
    """

    arm: ClassVar[str] = "model"
    is_form: ClassVar[bool] = True
    example: ClassVar = {"max_tokens": 20, "instructions": "Be short."}
    needs: frozenset[Need] = frozenset({"completion"})
    retrieves: ClassVar[bool] = False
    kind = ModelParams

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        if self._params.effort is not None:
            self.needs = self.needs | {"chat"}
        parts = {"demonstrations": (), "passage": "", "body": "{question}", "prefix": ""}
        self._template = Template(name="chat", instructions=self._params.instructions, **parts)  # type: ignore[arg-type]

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Stop reasons: "answered", "empty_answer", NO_TEXT, or the server's finish_reason if it is not "stop".

        If a reply has audio and no text, the answer is the transcript.
        """
        conversation, limit, effort = run.query.conversation, self._params.max_tokens, self._params.effort
        if effort is not None:
            own = [Message(role="system", text=self._params.instructions)]
            turns = [*own, *run.query.messages, Message(role="user", text=question)]
            messages = [{"role": turn.role, "content": turn.text} for turn in turns if turn.text]
            conversation = conversation or Conversation(fields={"messages": messages})
        with keep_partial(run, style="long"):
            if conversation and "chat" in run.generator.capabilities:
                prompt = Prompt(instructions="", body=question, history=run.query.messages)
                done = await run.chat(conversation, prompt=prompt, max_tokens=limit, effort=effort)
            else:
                options: dict[str, Any] = {"fields": {"question": question}, "final": str, "conversation": True}
                # Without a limit an answer gets a quarter of the model's context.
                limit = limit or max(1, (run.generator.context_tokens or PACKED_TOKENS) // 4)
                done = await ask(run, template=self._template, purpose="chat", max_tokens=limit, **options)
        reason, text = str(run.reply.get("finish_reason") or "stop"), done.text
        if is_blank(text) and (transcript := transcript_of(run.reply)):
            run.reply, text = {**run.reply, SPOKEN: True}, text + transcript
        if is_blank(text) and reason in ("stop", CUT) and has_media(run.reply):
            return Answer(text=text, stop_reason=NO_TEXT)
        return make_answer(text, "answered") if reason == "stop" else Answer(text=text, stop_reason=reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleStepParams(ReaderParams):
    preset: Literal["small", "flan", "gpt", "chat"] = "small"
    passages: Count = 3
    prompts: PromptSource = "ours"

    presets: ClassVar = preset_table(
        "max_tokens style passages prompts",
        flan=(200, "direct", 15, "paper"),
        gpt=(300, "reasoned", 6, "paper"),
        chat=(512, "long", 5, "ours"),
    )
    later: ClassVar = {"prompts": "ours"}


class SingleStep(PromptedArm[SingleStepParams]):
    """Searches once, then answers: 1 step (B in Adaptive-RAG's paper, OneR in IRCoT's).

    The search uses the question without question words. If no word is left, or if the budget allows no round or no
    passage, the model answers without a search. Stop reasons: "answered", "empty_answer".
    """

    arm: ClassVar[str] = "single_step"
    kind = SingleStepParams
    prompts: ClassVar = {"read": "read_{style}"}
    paper_prompts: ClassVar = {"read": "paper_read_{style}"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        await gather_once(run, query=question, pool=pool, k=self._params.passages)
        return make_answer(await self._read(question, run=run, pool=pool), "answered")


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiStepParams(ReaderParams):
    preset: Literal["small", "flan", "gpt", "chat"] = "small"
    #: what the prompt for a sentence asks for: a quotation from the passages, or a thought. `prompts: paper` asks for a
    #: thought
    think: Literal["quoted", "reasoned"] = "quoted"
    rounds: Count = 3
    passages_per_round: Count = 2
    passages: Count = 6  #: maximum number of passages kept in all rounds together; passages found later are dropped
    sentence_tokens: Count = 48
    prompts: PromptSource = "ours"

    presets: ClassVar = preset_table(
        "max_tokens style think rounds passages_per_round passages sentence_tokens prompts",
        flan=(200, "direct", "reasoned", 10, 6, 15, 200, "paper"),
        gpt=(300, "reasoned", "reasoned", 10, 3, 15, 300, "paper"),
        chat=(512, "long", "reasoned", 4, 3, 10, 128, "ours"),
    )
    later: ClassVar = {"prompts": "ours"}


class MultiStep(PromptedArm[MultiStepParams]):
    """Searches and writes a sentence of thought in each round; then a reader answers from the passages (IRCoT).

    The first round searches with the question, a later round with the latest sentence that is not mere reasoning (see
    `last_query`). Then the model writes the next sentence. The reader sees only the passages and the question, not the
    sentences. Stop reasons: "answer_found" (a sentence contains "answer is"), "empty_sentence", "thoughts_too_long"
    (the next prompt has no room for the sentences), "max_rounds", "budget_rounds" if the budget allows fewer rounds
    than the param `rounds`, and "empty_answer" if the reader finds no answer.
    """

    arm: ClassVar[str] = "multi_step"
    kind = MultiStepParams
    prompts: ClassVar = {"think": "think_{think}", "read": "read_{style}"}
    paper_prompts: ClassVar = {"think": "paper_think", "read": "paper_read_{style}"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        stop_reason = await self._gather_by_thinking(question, run=run, pool=pool)
        run.note_branch("chain_ended", stop_reason)
        return make_answer(await self._read(question, run=run, pool=pool), stop_reason)

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

"""Calls a user's pipeline over HTTP."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar

import httpx
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from ragbandit.shared.errors import ConfigError
from ragbandit.shared.model_servers.failures import Failure, ServerFailed
from ragbandit.shared.model_servers.json_server import JsonServer
from ragbandit.shared.model_servers.outbound import check_address, check_header_value, retry_pause
from ragbandit.shared.texts.plain_values import whole_number
from ragbandit.shared.texts.redaction import variable_or_hidden
from ragbandit.shared.types import MAX_AMOUNT, CallFailed, Cost, Json, Round
from ragbandit.strategies.arm_parts.prompted import ArmParams, ParamsArm
from ragbandit.strategies.base import seconds_until
from ragbandit.strategies.failures import OutOfBudget, error_text
from ragbandit.strategies.run import Answer, Run

#: longest random pause before the second attempt, seconds. Before every further attempt the longest pause doubles
_PAUSE_S = 0.5
#: longest random part of a pause, seconds, and longest Retry-After; the arm fails if the server asks for a longer wait
_LONGEST_S = 30.0
_SHOWN = 200  #: maximum number of characters of a field's name in messages


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpParams(ArmParams):
    url: str = ""
    #: timeout of one attempt, seconds; the budget's seconds apply too
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    #: maximum number of attempts after the first attempt; none if another arm answers after a failure
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    #: maximum bytes of a reply. A larger reply is a failure, and is not read to its end
    max_bytes: Annotated[int, Field(ge=1)] = 1_000_000
    #: HTTP header -> environment variable with its value, because secrets do not belong in a file
    headers_env: dict[str, str] = field(default_factory=dict)


_Whole = Annotated[int, BeforeValidator(whole_number), Field(strict=True, ge=0, le=int(MAX_AMOUNT))]
_Amount = Annotated[float, Field(strict=True, ge=0, le=MAX_AMOUNT, allow_inf_nan=False)]


class _ReportedCost(BaseModel, extra="forbid"):
    retriever_calls: _Whole = 0
    passages: _Whole = 0
    llm_calls: _Whole = 0
    prompt_tokens: _Whole = 0
    completion_tokens: _Whole = 0
    cached_tokens: _Whole = 0
    cache_write_tokens: _Whole = 0
    reasoning_tokens: _Whole = 0
    seconds_retrieve: _Amount = 0.0
    seconds_generate: _Amount = 0.0
    dollars: _Amount = 0.0


class PipelineReply(BaseModel):
    answer: Annotated[str, Field(strict=True)]
    stop_reason: Annotated[str, Field(strict=True, min_length=1)] = "answered"
    steps: Annotated[_Whole, Field(le=1000)] = 0  # at most 1,000, because each step adds an event to the trace
    cost: _ReportedCost = _ReportedCost()


def checked_reply(body: object, *, arm: str, remedy: str = "", redact: Callable[[str], str] = str) -> PipelineReply:
    """Validate the body of a reply. redact: function that removes secrets from a message. Raises ServerFailed."""
    try:
        return PipelineReply.model_validate(body)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        # Secrets are removed before the text is cut: half a secret could not be recognized.
        name = redact(".".join(map(str, fault["loc"])))[:_SHOWN] or "answer"
        message = f"the reply's {name} is {redact(repr(fault['input'])):.80}: {fault['msg']}"
        failure = Failure(kind="unreadable")
        raise ServerFailed(message, field=f"arms.{arm}", remedy=remedy or None, failure=failure) from None


def add_reply(reply: PipelineReply, *, run: Run) -> Answer:
    """Add the steps and the cost of a reply to the run, and return its answer. Raises OutOfBudget."""
    run.draft = reply.answer
    run.trace.extend(Round(number=number) for number in range(1, reply.steps + 1))
    run.add_cost(Cost(**reply.cost.model_dump()))
    return Answer(text=reply.answer, stop_reason=reply.stop_reason)


class Http(ParamsArm[HttpParams]):
    """Posts the question to a pipeline. The reply names the stop reason, by default "answered".

        request: {"question", "decision_id", "context", "tenant", "budget": {"rounds", "passages", "tokens", ...}}
        reply:   {"answer": "text", "steps": 2, "stop_reason": "answered", "cost": {"llm_calls": 3, ...}}

    In a conversation the request has "messages": [{"role", "content"}, ...], the oldest first. "budget" has the caps
    that are set, and the remaining seconds. "cost" may have any field of `shared.types.Cost` except seconds_total,
    assumed_dollars, turns and price. The arm itself enforces only the seconds of the budget. If the reply's cost is
    above another cap, the outcome is "exhausted" with the reply's answer.

    After a failure that may pass (`Failure.may_pass`) the arm repeats the call. The pause before is random, at least
    the server's Retry-After, and on average longer each time. The arm fails at once if Retry-After is above 30 s, for
    any other status outside 2xx, and for an invalid reply. The header Idempotency-Key has the decision's id, so that
    the pipeline recognizes a repeated call.
    """

    arm: ClassVar[str] = "http"
    is_form: ClassVar[bool] = True
    example: ClassVar = {"url": "http://localhost:9/answer", "headers_env": {"X-Home": "HOME"}}
    retrieves: ClassVar[bool] = False
    generates: ClassVar[bool] = False
    kind = HttpParams

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        where = f"arms.{self.name}"
        remedy = "for example http://localhost:9000/answer"
        check_address(self._params.url, field=f"{where}.url", remedy=remedy, query=True)
        headers = {
            header: header_secret(variable, field=f"{where}.headers_env.{header}")
            for header, variable in self._params.headers_env.items()
        }
        example, most = '{"answer": "..."}', f"{where}.max_bytes"
        self._server = JsonServer(
            url=self._params.url, section=where, what="pipeline", example=example, too_large=most, headers=headers
        )

    async def answer(self, question: str, *, run: Run) -> Answer:
        query = run.query
        body: dict[str, Json] = {
            "question": question,
            "decision_id": query.id,
            "context": dict(query.context),
            "tenant": query.tenant,
        }
        if query.messages:
            body["messages"] = [{"role": message.role, "content": message.text} for message in query.messages]
        async with self._server.client() as client:
            reply_body = await self._post_with_retries(client, body=body, run=run)
        return add_reply(checked_reply(reply_body, arm=self.name, redact=self._server.redact), run=run)

    async def _post_with_retries(self, client: httpx.AsyncClient, *, body: Mapping[str, Json], run: Run) -> object:
        """Send the request, and repeat failed attempts. Returns the reply's JSON. Raises ServerFailed, OutOfBudget."""
        retries = 0 if run.has_successor else self._params.retries
        headers = {"Idempotency-Key": run.query.id} if run.query.id else {}
        attempts = 0
        while True:
            attempts += 1
            began = time.monotonic()
            caps = {name: cap for name, cap in asdict(run.budget).items() if cap is not None}
            seconds = seconds_until(run.deadline)
            if seconds == 0.0:
                raise OutOfBudget("seconds")
            caps |= {} if seconds is None else {"seconds": seconds}
            timeout = self._params.timeout_s if seconds is None else min(self._params.timeout_s, seconds)
            sent, most = {**body, "budget": caps}, self._params.max_bytes
            try:
                return await self._server.post(client, sent, timeout=timeout, max_bytes=most, headers=headers)
            except ServerFailed as failed:
                error = failed
            is_late = error.failure.kind in ("timeout", "broken", "unreachable") and seconds_until(run.deadline) == 0.0
            run.trace.append(CallFailed(purpose="remote", error=error_text(error), seconds=time.monotonic() - began))
            if is_late:
                raise OutOfBudget("seconds")
            asked_s = error.failure.retry_after_s or 0.0
            if attempts > retries or asked_s > _LONGEST_S or not error.failure.may_pass:
                raise error
            pause = retry_pause(
                attempts, base_s=_PAUSE_S, longest_s=_LONGEST_S, asked_s=asked_s, left_s=seconds_until(run.deadline)
            )
            if pause is None:
                raise OutOfBudget("seconds")
            await asyncio.sleep(pause)


def header_secret(variable: str, *, field: str) -> str:
    if variable not in os.environ:
        remedy = "set the variable in the environment of every worker"
        message = f"the environment variable {variable_or_hidden(variable)} is not set"
        raise ConfigError(message, field=field, remedy=remedy)
    remedy = "set that variable to the header's value and nothing else"
    check_header_value(os.environ[variable], source=variable_or_hidden(variable), field=field, remedy=remedy)
    return os.environ[variable]

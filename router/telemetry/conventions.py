"""Names of spans and attributes. docs/telemetry.md explains our own names.

The names were read on 2026-11-20: HTTP from semantic conventions 1.45, GenAI from semantic-conventions-genai (in
development, so names may change), OpenInference from 0.1.42. OpenTelemetry's own GenAI constants are deprecated.
"""

from typing import Final

# ---------------------------------------------------------------------------------------------------------------- HTTP
HTTP_METHOD: Final = "http.request.method"
HTTP_ROUTE: Final = "http.route"
HTTP_STATUS: Final = "http.response.status_code"
URL_SCHEME: Final = "url.scheme"
ERROR_TYPE: Final = "error.type"

# --------------------------------------------------------------------------------------------------------------- GenAI
OPERATION: Final = "gen_ai.operation.name"
WORKFLOW: Final = "gen_ai.workflow.name"
CONVERSATION: Final = "gen_ai.conversation.id"
DATA_SOURCE: Final = "gen_ai.data_source.id"
TOP_K: Final = "gen_ai.retrieval.top_k"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
# The next four attributes contain texts. They are set only if the capture of texts is turned on.
QUERY_TEXT: Final = "gen_ai.retrieval.query.text"
DOCUMENTS: Final = "gen_ai.retrieval.documents"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"

# ------------------------------------------------------------------------------------------------------- OpenInference
SPAN_KIND: Final = "openinference.span.kind"

# ---------------------------------------------------------------------------------------------------------------- ours
DECIDE: Final = "ragbandit.decide"
DECISION_ID: Final = "ragbandit.decision.id"
DECISION_ARM: Final = "ragbandit.decision.arm"
DECISION_PROPENSITY: Final = "ragbandit.decision.propensity"
DECISION_EXPLORED: Final = "ragbandit.decision.explored"
DECISION_POLICY: Final = "ragbandit.decision.policy"
DECISION_VERSION: Final = "ragbandit.decision.policy.version"
DECISION_DEGRADED: Final = "ragbandit.decision.degraded"
REQUEST_ID: Final = "ragbandit.request.id"
PURPOSE: Final = "ragbandit.purpose"
PASSAGES: Final = "ragbandit.passages"
ATTEMPT: Final = "ragbandit.attempt"
STATUS: Final = "ragbandit.outcome.status"
STOP_REASON: Final = "ragbandit.outcome.stop_reason"
STEPS: Final = "ragbandit.outcome.steps"
DOLLARS: Final = "ragbandit.outcome.dollars"
PROCESS: Final = "ragbandit.process"

"""Settings of features that left the product, and what to use instead: an old configuration file is told."""

from fnmatch import fnmatchcase
from typing import Final

#: of the section openai of every generator
_OPENAI: Final[dict[str, str]] = {
    "connect_s": "nothing: a connection is waited for 5 s",
    "attempt_s": "generator.openai.read_s, and budget.seconds of the question",
    "pause_s": "nothing: the openai package waits as the server asks, or doubles half a second",
    "longest_pause_s": "budget.seconds of the question: no attempt begins after it",
    "prices": "generator.openai.token_prices",
    "mode": "nothing: chats are asked for; prefix: continue goes on from a text, where the server can (vLLM)",
    "alternatives": "nothing: the tokens written are told with their log-probabilities",
    "probe": "nothing: a server that is away, or does less than is set, fails the arms that ask it",
    "tokenizer": "generator.openai.bytes_per_token",
    "requests_per_minute": "generator.openai.concurrency, or limits of a gateway such as LiteLLM",
    "tokens_per_minute": "generator.openai.concurrency, or limits of a gateway such as LiteLLM",
}
#: sections of generators
_GENERATORS: Final = ("generator", "generators.*", "judge.generator", "conversation.rewrite.generator")
#: path of a setting, or of a section (* stands for any name) -> what to use instead
REMOVED: Final[dict[str, str]] = {
    "prices": "cost_weights, the same names and weights",
    "server.oidc": "oauth2-proxy in front, with server.trusted_header (docs/security.md, People sign in)",
    "server.public_url": "nothing: no link needs it",
    "tenants.*.decisions_per_day": "server.rate_limits, or the scope rate of a key",
    "tenants.*.feedback_per_day": "server.rate_limits, or the scope rate of a key",
    "server.feedback_origins": "POST /v1/feedback, sent by your application",
    "server.browser_feedback_s": "POST /v1/feedback, sent by your application",
    "server.browser_feedback_raters": "POST /v1/feedback, sent by your application",
    "server.feedback_secret": "POST /v1/feedback, sent by your application",
    "server.request_timeout_s": "time limits of a proxy in front of the service (nginx has them by default)",
    "server.processes": "several services behind a proxy, on PostgreSQL (docs/operations.md, More than one machine)",
    "workers.max_queued": "server.max_unanswered",
    "webhooks": "Alertmanager on the alerts of deploy/prometheus/alerts.yaml",
    "checkpoints": "snapshots: a snapshot of every 10,000 updates is kept beside the newest",
    "learning.checkpoint_every": "nothing: a snapshot of every 10,000 updates is kept",
    "learning.checkpoints_kept": "learning.snapshots_kept",
    "importers": "`ragbandit feedback import FILE.jsonl`, whose options name the fields (docs/feedback.md)",
    "learning.influence": "learning.rater_per_day, `ragbandit feedback exclude`, or learning.sources",
    "learning.calibrate": "learning.weights.judge: one weight for all scores of the judge",
    "conversation.rewrite.max_under_way": "nothing: 64 rewrites of one process are under way at once",
    "rollout.interval_s": "nothing: versions are looked at every 5 s",
    "rollout.verdict_every_s": "nothing: a verdict like the one before is kept again after 5 minutes",
    "archive": "`ragbandit data export --before 90d FILE.parquet`, then `ragbandit data erase --before 90d`",
    **{f"{section}.price": f"{section}.token_prices" for section in _GENERATORS},
    **{f"{section}.openai.{name}": words for section in _GENERATORS for name, words in _OPENAI.items()},
}


def instead_of(path: str) -> str | None:
    """What to use instead of a setting that left, by its path; None for one that never was."""
    return next((words for head, words in REMOVED.items() if fnmatchcase(f"{path}.", f"{head}.*")), None)

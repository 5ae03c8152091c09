"""The table "feature, files" of docs/architecture.md: the files of every feature, as they stand in the tree."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
_PAGE: Final = _ROOT / "docs" / "architecture.md"
_BEGIN: Final = "<!-- features: written by `make docs` from docs/generate/features.py -->\n"
_END: Final = "<!-- end of features -->\n"

#: feature -> patterns of its files, in the order in which it runs through them
FEATURES: Final[Mapping[str, tuple[str, ...]]] = {
    "the choice of an arm": (
        "router/serving/deciding/*.py",
        "router/policies/base.py",
        "router/policies/draw.py",
        "router/encoders/distilbert.py",
    ),
    "admission and batches": ("router/serving/batching.py",),
    "checks of what comes in": ("router/serving/checks/*.py", "router/config/context_schema.py"),
    "conversations, sticky turns": ("router/serving/conversations.py", "router/storage/decisions/search.py"),
    "health of arms": ("router/serving/health/circuit_breaker.py",),
    "decisions in the store": ("router/storage/decisions/*.py", "router/storage/rows/conversion.py"),
    "the answer queue": ("router/storage/answer_queue.py", "router/serving/pending.py", "workers/tasks.py"),
    "answers word by word": ("router/api/endpoints/streaming.py", "router/queue/streams.py", "strategies/run.py"),
    "the ledger": ("router/storage/ledgers/*.py",),
    "learning": ("router/learning/learner.py", "router/learning/examples.py", "router/learning/reward.py"),
    "raters": ("router/learning/sources.py",),
    "sources: weights, caps, exclusion": ("router/learning/sources.py",),
    "the judge": (
        "workers/judge/*.py",
        "workers/scoring.py",
        "router/storage/judgements.py",
        "router/storage/rows/outcome_rows.py",
    ),
    "checks as rewards": ("ragbandit/checks.py", "workers/check_process.py", "router/storage/rows/outcome_rows.py"),
    "verify": ("router/learning/audit/*.py",),
    "versions, canary, kill switch": (
        "router/rollouts/*.py",
        "router/serving/following/versions.py",
        "router/policies/draw.py",
        "router/storage/policy_versions.py",
        "workers/housekeeping.py",
    ),
    "hourly totals, overview": ("router/storage/totals.py", "router/serving/overview.py"),
    "the report": (
        "router/reporting/*.py",
        "router/policies/draw.py",
        "router/api/endpoints/operations.py",
        "router/api/ui/operation.py",
        "router/cli/inspection.py",
    ),
    "explain": ("router/serving/explanations/*.py", "router/cli/inspection.py"),
    "replay": ("router/offline/logs/*.py", "router/offline/replay/*.py", "router/offline/estimation/*.py"),
    "simulated passes, warm": (
        "router/offline/passes.py",
        "router/offline/warm.py",
    ),
    "evaluate": ("workers/evaluation/*.py",),
    "erasure, retention": ("router/storage/erasure.py", "router/storage/retention.py"),
    "keys, tenants": ("router/api/security/*.py", "router/storage/access/*.py"),
    "rates, dollar budgets": ("router/api/security/*.py", "router/storage/access/spending.py"),
    "OpenAI's interface": ("router/api/openai/*.py",),
    "MCP": ("router/api/mcp.py", "router/api/mcp_tools.py"),
    "the dashboard": ("router/api/ui/*.py",),
    "metrics, traces": ("router/api/metrics.py", "router/telemetry/*.py"),
    "state of learning, changed arms, price": ("router/learning/monitoring/*.py",),
    "findings: what is wrong, what to do": ("router/api/findings.py",),
}


def files_of(feature: str) -> list[str]:
    """The files of a feature, from the repository's root. Raises ValueError for a pattern that has none."""
    files = []
    for pattern in FEATURES[feature]:
        here = sorted(path for path in _ROOT.glob(pattern) if path.name != "__init__.py")
        if not here:
            raise ValueError(f"{feature}: no file is named {pattern}")
        files += [str(path.relative_to(_ROOT)) for path in here]
    return files


def _row(feature: str) -> str:
    """Files of one folder stand together: `folder/`: a, b."""
    folders: dict[str, list[str]] = {}
    for file in files_of(feature):
        folder, _, name = file.rpartition("/")
        folders.setdefault(folder, []).append(name.removesuffix(".py"))
    cells = [f"`{folder}/`: {', '.join(names)}" for folder, names in folders.items()]
    return f"| {feature} | {'; '.join(cells)} |"


def architecture_page() -> str:
    """docs/architecture.md with the table as it is now."""
    before, _, rest = _PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    after = rest.partition(_END)[2]
    table = ["| feature | files |", "|---|---|", *map(_row, FEATURES)]
    return before + _BEGIN + "\n".join(table) + "\n" + _END + after

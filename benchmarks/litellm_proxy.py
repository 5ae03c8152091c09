"""LiteLLM's proxy, which is measured with a service: its command and its environment."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml


def litellm_command(venv: Path, *, models: Sequence[dict[str, Any]], folder: Path, port: int) -> tuple[str, ...]:
    """The command that starts it. venv: has litellm[proxy]; models: `litellm_params` of the models behind `auto`."""
    settings = {"telemetry": False, "drop_params": True}
    lists = [{"model_name": "auto", "litellm_params": model} for model in models]
    config = folder / "litellm.yaml"
    config.write_text(yaml.safe_dump({"model_list": lists, "litellm_settings": settings}))
    given = ("--config", str(config), "--port", str(port), "--host", "127.0.0.1")
    return (str(venv / "bin" / "litellm"), *given)


#: further variables of its environment: no development mode, no downloads, no key
LITELLM_ENVIRONMENT = {
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}

"""Wiring of arms: from settings to the params of each arm that workers run."""

from ragbandit.router.config.settings import Settings
from ragbandit.router.errors import ConfigError
from ragbandit.strategies.registry import make_arms
from ragbandit.workers.wiring.generators import offered
from ragbandit.workers.wiring.retrievers import check_reranker

__all__ = ["arm_params", "check_arms"]


def arm_params(settings: Settings) -> dict[str, dict[str, object]]:
    """The arms that our workers run, without the router's own keys."""
    return {
        name: {key: value for key, value in params.items() if key != "run_by"}
        for name, params in settings.worker_arms.items()
    }


def check_arms(settings: Settings) -> None:
    """Refuse unknown arms, wrong params, unmet needs and a reranker that is not there, without loading a model.

    Raises ConfigError.
    """
    for name, params in settings.arms.items():
        if params.get("run_by", "worker") not in ("worker", "caller"):
            raise ConfigError(
                f"{params['run_by']!r} is unknown", field=f"arms.{name}.run_by", remedy="worker or caller"
            )
    if settings.worker_arms:
        make_arms(arm_params(settings), capabilities=offered(settings.generator))
        check_reranker(settings)

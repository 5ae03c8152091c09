"""Heads as the policies make them, of one model of the question, and the posterior inside."""

from types import SimpleNamespace

from ragbandit.router.policies.averaging import AveragedHeads
from ragbandit.router.policies.posterior import Heads


def averaged(*, ridge, bias_ridge, memory=None, pairs=32, quality=None):
    """The heads of a policy whose only model is the question."""
    model = Heads(None, ridge=ridge, bias_ridge=bias_ridge, memory=memory, pairs=pairs)
    return AveragedHeads({}, models={"question": (1.0, model)}, memory=memory, quality=quality)


def separate(heads, arm):
    """The posterior of an arm: covariance (p, p), mean (2, p), pairs' deviations (pairs, p)."""
    model = heads._models["question"]
    part, at = model._joint[arm], list(model._arms).index(arm)
    gains = part.gains[: len(part.newest)]
    covariance = part.covariance - gains.T @ gains
    return SimpleNamespace(covariance=covariance, mean=model._mean[:, at], deviations=model._deviations[:, at])

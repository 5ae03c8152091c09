"""Heads as the policies make them, of one model of the question, and the posterior inside."""

from ragbandit.router.policies.averaging import AveragedHeads
from ragbandit.router.policies.posterior import SeparateHeads


def averaged(*, ridge, bias_ridge, memory=None, block=256, samples=64, quality=None):
    """The heads of a policy whose only model is the question."""
    model = SeparateHeads(ridge=ridge, bias_ridge=bias_ridge, memory=memory, block=block, samples=samples)
    return AveragedHeads({}, models={"question": (1.0, model)}, memory=memory, quality=quality)


def separate(heads, arm):
    """The sums and the posterior of an arm, with all its rows in it."""
    model = heads._models["question"]
    model._take(arm, model._arms[arm])
    return model._arms[arm]

"""Estimates of arrays that are in one place."""

from ragbandit.router.offline.estimation import Estimator, Moments, estimated, terms


def estimate(estimator, reward, **arrays):
    """The estimate of these arrays, named as those of `terms`; estimator: one, or its name."""
    estimator = Estimator(name=estimator) if isinstance(estimator, str) else estimator
    return estimated(estimator, moments=Moments.of(*terms(estimator, reward=reward, **arrays)))

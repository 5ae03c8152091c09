"""Estimates of arrays that are in one place."""

from ragbandit.router.offline.estimation.estimators import Estimator, estimated, terms


def estimate(estimator, reward, **arrays):
    """The estimate of these arrays, named as those of `terms`; estimator: one, or its text, as "dros:4"."""
    estimator = Estimator.parse(estimator) if isinstance(estimator, str) else estimator
    return estimated(estimator, moments=terms(estimator, reward=reward, **arrays).moments)

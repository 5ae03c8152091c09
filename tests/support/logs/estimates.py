"""Estimates of arrays that are in one place."""

import numpy as np

from ragbandit.router.offline.estimation import Estimator, Moments, estimated, scores


def estimate(estimator, reward, *, predicted=None, **arrays):
    """The estimate of these arrays, named as those of `scores`; estimator: one, or its name."""
    estimator = Estimator(name=estimator) if isinstance(estimator, str) else estimator
    predicted = np.zeros(arrays["logged"].shape) if predicted is None else predicted
    columns = estimator.parts @ scores(reward=reward, predicted=predicted, **arrays)
    return estimated(estimator, moments=Moments.of(*columns))

"""Lines 1 to 7 of docs/estimates.md, computed once more with the symbols of the page: the code gives the same."""

import numpy as np
import pytest

from ragbandit.router.reporting.estimates import ALPHA, compared
from ragbandit.router.reporting.estimates.control_variates import HALF_SLOPE
from ragbandit.router.reporting.estimates.draws import PRIOR_ROWS
from ragbandit.router.reporting.estimates.mean_intervals import LEAN, MOST_LEAN, NARROWEST_AT, UNSEEN_ROWS
from ragbandit.router.reporting.estimates.served import LEAST_ROOM
from ragbandit.shared.confidence_sequences import asymptotic_width

COUNT, ARMS, AGAINST = 900, 3, 2
ROWS = np.arange(COUNT)


def kish(weight):
    return weight.sum() ** 2 / (weight**2).sum()


def line(y, *, weight, x):
    """Line 2: m of all rows."""
    mean = weight @ y / weight.sum()
    away = x - weight @ x / weight.sum()
    slope = weight @ (away * (y - mean)) / (weight @ away**2)
    return mean + slope * kish(weight) / (kish(weight) + HALF_SLOPE) * away


def heaviest(part, *, p, r):
    weight = part / p / r
    return (p * r * weight**3).sum() / (p * r * weight**2).sum()


def effective(part, *, p, r, v, arm, seen):
    """R of line 5 for a part of all questions."""
    drawn, predicted = part[ROWS, arm] * v, part.sum() ** 2 / (part**2 / p / r).sum()
    return min(kish(drawn), predicted, kish(seen / r[arm]))


def ends(d, *, rows, farthest):
    """Lines 6 and 7."""
    z = (d - d.mean()) / len(d)
    q, lean = np.sqrt(d.var(ddof=1) / len(d) * rows / (rows - 2.0)), (z**3).sum() / (z**2).sum()
    errors = []
    for amount in farthest:
        far = max(amount, abs(lean))
        rare = far / np.sqrt(1.0 + 2.0 * ((z / far) ** 4).sum())
        first, second = np.hypot(q, UNSEEN_ROWS * far), np.sqrt(q**2 + UNSEEN_ROWS**2 * (lean**2 + rare**2))
        wide = first + LEAN * UNSEEN_ROWS * abs(lean)
        near = min(first, second) - LEAN * UNSEEN_ROWS * min(abs(lean), MOST_LEAN * q)
        errors.append((near, wide) if lean > 0.0 else (wide, near))
    times = np.sqrt(rows) * asymptotic_width(rows, alpha=ALPHA, tightest_at=NARROWEST_AT)
    return d.mean(), d.mean() - times * errors[0][0], d.mean() + times * errors[1][1]


@pytest.fixture
def log():
    """Draws of three arms, half of them rated, with predictions. y is 0 where nobody rated."""
    random = np.random.default_rng(3)
    p = random.dirichlet(np.full(ARMS, 3.0), COUNT) * 0.85 + 0.05
    arm = (p.cumsum(axis=1) < random.random((COUNT, 1))).sum(axis=1)
    x = random.random((COUNT, ARMS))
    seen = (random.random(COUNT) < 0.5).astype(np.float64)
    y = seen * (random.random(COUNT) < 0.1 + 0.2 * arm + 0.3 * x[ROWS, arm])
    r = np.array([seen[arm == k].mean() for k in range(ARMS)])
    v = seen / p[ROWS, arm]
    v *= np.array([COUNT / v[arm == k].sum() for k in range(ARMS)])[arm]
    return {"p": p, "arm": arm, "x": x, "seen": seen, "y": y, "r": r, "v": v}


def of_code(log, **ways):
    value = np.where(log["seen"] > 0.0, log["y"], np.nan)
    options = {"arm": log["arm"], "pmf": log["p"], "predicted": log["x"], "least": 0.0, "most": 1.0}
    difference = compared(value, **options, **ways).difference
    return difference.estimate, difference.low, difference.high


def test_a_policy_minus_a_policy(log):
    """A rollout's difference and its ends are those of lines 1 to 7."""
    p, arm, y, v = (log[name] for name in ("p", "arm", "y", "v"))
    first = np.random.default_rng(4).dirichlet(np.ones(ARMS), COUNT)
    models = np.stack([line(y, weight=v * (arm == k), x=log["x"][:, k]) for k in range(ARMS)], axis=1)
    scores = [v * way[ROWS, arm] * (y - models[ROWS, arm]) + (way * models).sum(axis=1) for way in (first, p)]
    given = {name: log[name] for name in ("p", "r", "v", "arm", "seen")}
    heavy = heaviest(np.abs(first - p), p=p, r=log["r"]) / COUNT
    rows = min(effective(way, **given) for way in (first, p))
    expected = ends(scores[0] - scores[1], rows=rows, farthest=(heavy, heavy))
    assert of_code(log, first=first, second=p) == pytest.approx(expected, rel=1e-9)


def test_the_served_answers_minus_an_arm(log):
    """A report's difference and its ends are those of lines 1 to 7."""
    p, arm, y, r, seen = (log[name] for name in ("p", "arm", "y", "r", "seen"))
    f, is_other, away = np.zeros(COUNT), arm != AGAINST, 1.0 - p[:, AGAINST]
    for k in range(ARMS):
        rows = arm == k
        above = y.sum() / seen.sum() - y[rows].sum() / seen[rows].sum()
        m = line(y[rows], weight=seen[rows], x=log["x"][rows, k]) + PRIOR_ROWS / (PRIOR_ROWS + seen[rows].sum()) * above
        f[rows] = seen[rows] / r[k] * (y[rows] - m) + m
    u = ~is_other * seen * away / p[:, AGAINST]
    m = line(y, weight=u, x=log["x"][:, AGAINST])
    e = u * away.sum() / u.sum() * (y - m) + is_other * m
    d = is_other * f - e
    part = np.zeros(p.shape)
    part[:, AGAINST] = away
    both = (
        kish((seen / r[arm])[is_other]),
        effective(part, **{name: log[name] for name in ("p", "r", "v", "arm", "seen")}),
    )
    squares = (d - d.mean()) ** 2
    shares = squares[is_other].sum() / squares.sum(), squares[~is_other].sum() / squares.sum()
    rows = 1.0 / sum(share**2 / count for share, count in zip(shares, both, strict=True))
    of_rated, of_controls = 1.0 / r[[0, 1]].min() / COUNT, heaviest(part, p=p, r=r) / COUNT
    (fb, fa), (eb, ea) = (
        (max(mean, LEAST_ROOM), max(1.0 - mean, LEAST_ROOM)) for mean in (f[is_other].mean(), e[is_other].mean())
    )
    farthest = max(of_rated * fb, of_controls * ea), max(of_rated * fa, of_controls * eb)
    second = np.tile(np.eye(ARMS)[AGAINST], (COUNT, 1))
    assert of_code(log, second=second) == pytest.approx(ends(d, rows=rows, farthest=farthest), rel=1e-9)

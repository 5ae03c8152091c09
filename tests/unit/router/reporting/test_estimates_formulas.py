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


def of_clusters(values, cluster):
    """The sums over the rows of each cluster, by a plain loop."""
    sums = {}
    for name, value in zip(cluster.tolist(), values.tolist(), strict=True):
        sums[name] = sums.get(name, 0.0) + value
    return np.array(list(sums.values()))


def each(weight, cluster):
    """The g of line 5."""
    return (of_clusters(weight, cluster) ** 2).sum() / (weight**2).sum()


def line(y, *, weight, x):
    """Line 2: m of all rows."""
    mean = weight @ y / weight.sum()
    away = x - weight @ x / weight.sum()
    slope = weight @ (away * (y - mean)) / (weight @ away**2)
    return mean + slope * kish(weight) / (kish(weight) + HALF_SLOPE) * away


def heaviest(part, *, p, r):
    weight = part / p / r
    return (p * r * weight**3).sum() / (p * r * weight**2).sum()


def effective(part, *, p, r, v, arm, seen, cluster):
    """R of line 5 for a part of all questions."""
    drawn, predicted = part[ROWS, arm] * v, part.sum() ** 2 / (part**2 / p / r).sum()
    rated = seen / r[arm]
    return min(min(kish(drawn), predicted) / each(drawn, cluster), kish(rated) / each(rated, cluster))


def ends(d, *, rows, farthest, cluster):
    """Lines 6 and 7."""
    z = of_clusters((d - d.mean()) / len(d), cluster)
    q = np.sqrt((z**2).sum() * len(z) / (len(z) - 1.0) * rows / (rows - 2.0))
    lean = (z**3).sum() / (z**2).sum()
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


@pytest.fixture(params=[COUNT, 60], ids=["each row is a cluster", "raters rate a question again"])
def log(request):
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
    cluster = np.where(seen > 0.0, ROWS % request.param, COUNT + ROWS)
    return {"p": p, "arm": arm, "x": x, "seen": seen, "y": y, "r": r, "v": v, "cluster": cluster}


def of_code(log, **ways):
    value = np.where(log["seen"] > 0.0, log["y"], np.nan)
    cluster = np.where(log["seen"] > 0.0, log["cluster"], -1)
    options = {"arm": log["arm"], "pmf": log["p"], "predicted": log["x"], "least": 0.0, "most": 1.0, "cluster": cluster}
    difference = compared(value, **options, **ways).difference
    return difference.estimate, difference.low, difference.high


def test_a_policy_minus_a_policy(log):
    """A rollout's difference and its ends are those of lines 1 to 7."""
    p, arm, y, r, v, cluster = (log[name] for name in ("p", "arm", "y", "r", "v", "cluster"))
    first = np.random.default_rng(4).dirichlet(np.ones(ARMS), COUNT)
    models = np.stack([line(y, weight=v * (arm == k), x=log["x"][:, k]) for k in range(ARMS)], axis=1)
    scores = [v * way[ROWS, arm] * (y - models[ROWS, arm]) + (way * models).sum(axis=1) for way in (first, p)]
    given = {name: log[name] for name in ("p", "r", "v", "arm", "seen", "cluster")}
    away = np.abs(first - p)
    g = each(log["seen"] * (away / p)[ROWS, arm] / r[arm], cluster)
    heavy = g * heaviest(away, p=p, r=r) / COUNT
    rows = min(effective(way, **given) for way in (first, p))
    expected = ends(scores[0] - scores[1], rows=rows, farthest=(heavy, heavy), cluster=cluster)
    assert of_code(log, first=first, second=p) == pytest.approx(expected, rel=1e-9)


def test_the_served_answers_minus_an_arm(log):
    """A report's difference and its ends are those of lines 1 to 7."""
    p, arm, y, r, seen, cluster = (log[name] for name in ("p", "arm", "y", "r", "seen", "cluster"))
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
    rated = (seen / r[arm])[is_other]
    both = (
        kish(rated) / each(rated, cluster[is_other]),
        effective(part, **{name: log[name] for name in ("p", "r", "v", "arm", "seen", "cluster")}),
    )
    squares = [(of_clusters((d - d.mean())[rows], cluster[rows]) ** 2).sum() for rows in (is_other, ~is_other)]
    rows = 1.0 / sum((square / sum(squares)) ** 2 / count for square, count in zip(squares, both, strict=True))
    of_rated = each(rated, cluster[is_other]) / r[[0, 1]].min() / COUNT
    of_controls = each(u, cluster) * heaviest(part, p=p, r=r) / COUNT
    (fb, fa), (eb, ea) = (
        (max(mean, LEAST_ROOM), max(1.0 - mean, LEAST_ROOM)) for mean in (f[is_other].mean(), e[is_other].mean())
    )
    farthest = max(of_rated * fb, of_controls * ea), max(of_rated * fa, of_controls * eb)
    second = np.tile(np.eye(ARMS)[AGAINST], (COUNT, 1))
    assert of_code(log, second=second) == pytest.approx(
        ends(d, rows=rows, farthest=farthest, cluster=cluster), rel=1e-9
    )


@pytest.mark.parametrize("name", ["first", "second"])
def test_a_copy_of_each_row_tells_nothing_new(log, name):
    """A log in which each rated row stands three times, as one cluster, has the interval of the log. Without clusters,
    the interval is narrower; and a cluster of one row changes no digit.
    """
    rated = np.flatnonzero(log["seen"] > 0.0)
    one = {"arm": log["arm"][rated], "pmf": log["p"][rated], "predicted": np.full((len(rated), ARMS), np.nan)}
    policy = np.random.default_rng(5).dirichlet(np.ones(ARMS), len(rated))
    ways = {"first": policy, "second": one["pmf"]} if name == "first" else {"first": one["pmf"], "second": policy}
    three = {key: np.repeat(value, 3, axis=0) for key, value in (one | ways).items()}
    y, bounds = log["y"][rated], {"least": 0.0, "most": 1.0}
    once = compared(y, **one, **ways, **bounds).difference
    numbered = compared(y, **one, **ways, **bounds, cluster=np.arange(len(rated))[::-1]).difference
    again = compared(np.repeat(y, 3), **three, **bounds, cluster=np.repeat(np.arange(len(rated)), 3)).difference
    blind = compared(np.repeat(y, 3), **three, **bounds).difference
    assert numbered == once
    assert (again.estimate, again.low, again.high, again.effective_rows) == pytest.approx(
        (once.estimate, once.low, once.high, once.effective_rows), rel=1e-9
    )
    assert blind.high - blind.low < 0.8 * (once.high - once.low)

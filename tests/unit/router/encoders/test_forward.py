"""How many threads encode where nobody says."""

import pytest

from ragbandit.router.encoders.forward import default_threads


@pytest.mark.parametrize(
    ("environment", "cores", "expected"),
    [
        ({}, 16, 1),
        ({"GOMP_SPINCOUNT": "1000"}, 16, 4),
        ({"GOMP_SPINCOUNT": "1000"}, 2, 2),
        ({"GOMP_SPINCOUNT": "0"}, 2, 2),
        ({"GOMP_SPINCOUNT": "300000"}, 16, 1),
        ({"GOMP_SPINCOUNT": "infinite", "OMP_WAIT_POLICY": "passive"}, 16, 1),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, 16, 4),
        ({"OMP_WAIT_POLICY": "active"}, 16, 1),
    ],
)
def test_many_threads_only_where_waiting_ones_sleep(environment, cores, expected):
    """One thread by default; up to four where the environment keeps waiting threads from spinning for long."""
    assert default_threads(environment, cores=cores) == expected

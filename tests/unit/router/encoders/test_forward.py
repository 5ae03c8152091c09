"""The number of encoding threads if no setting gives it."""

import pytest

from ragbandit.router.encoders.forward import automatic_precision, default_threads


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


@pytest.mark.parametrize(
    ("features", "supports_int8", "precision"),
    [
        ({"amx_bf16": True, "avx512_vnni": True}, True, "bfloat16"),
        ({"avx512_vnni": True, "avx512_bf16": True}, True, "int8"),
        ({"avx_vnni": True}, True, "int8"),
        ({"avx512_vnni": True, "avx512_bf16": True}, False, "float32"),
        ({"avx2": True}, True, "float32"),
        ({}, True, "float32"),
    ],
)
def test_auto_precision_follows_the_instruction_sets(features, supports_int8, precision):
    """AMX computes bfloat16, VNNI int8 if the model can, and any other processor float32."""
    assert automatic_precision(features, supports_int8=supports_int8) == precision

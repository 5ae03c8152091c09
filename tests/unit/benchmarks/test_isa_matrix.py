"""The table by instruction set: what is skipped, and what is read from pytest."""

from benchmarks.isa_matrix import SETTINGS, counts, skipped


def test_a_setting_that_the_processor_cannot_have_is_skipped_with_the_reason():
    """On a processor with AVX2 alone, AMX is skipped by name, and what needs no flag runs."""
    reasons = {setting.name: skipped(setting, flags=frozenset({"avx2"})) for setting in SETTINGS}
    assert reasons["oneDNN AVX512_CORE_AMX"] == "the processor has no amx_bf16"
    assert reasons["oneDNN AVX2"] is reasons["1 thread"] is None


def test_passed_and_failed_are_read_from_the_last_lines():
    """Errors count as failed, and the lines that name them are kept."""
    printed = "FAILED tests/a.py::b - x\nERROR tests/c.py::d\n1 failed, 30 passed, 2 errors in 3.00s\n"
    result = counts(printed, seconds=3.0)
    assert (result.passed, result.failed, len(result.names)) == (30, 3, 2)


def test_a_run_without_a_count_has_failed():
    """A pytest that was killed, or could not start, is a failure."""
    result = counts("Segmentation fault", seconds=1.0)
    assert (result.passed, result.failed) == (0, 1)
    assert "Segmentation fault" in result.names[0]

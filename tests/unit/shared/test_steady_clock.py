"""The clock of what is closed for good: jumps of the host's clock against the time that has passed."""

from ragbandit.shared.processes.steady_clock import SLACK_S, TRUST_S, SteadyClock

DAY = 86_400.0


def test_a_jump_ahead_is_not_followed_at_once():
    """Back and small steps are followed; a step ahead is not, until the clock was ahead for TRUST_S."""
    wall, passed = [1000 * DAY], [50.0]
    clock = SteadyClock(wall=lambda: wall[0], monotonic=lambda: passed[0])

    def after(seconds, *, step=0.0):
        passed[0] += seconds
        wall[0] += seconds + step
        return clock.now() - 1000 * DAY

    assert after(30 * DAY) == 30 * DAY  # an idle store expires
    assert after(1, step=SLACK_S) == 30 * DAY + 1 + SLACK_S
    assert after(1, step=-SLACK_S) == 30 * DAY + 2
    assert after(8, step=10 * DAY) == 30 * DAY + 10
    assert after(TRUST_S - 10) == 30 * DAY + TRUST_S
    assert after(0, step=-10 * DAY) == 30 * DAY + TRUST_S
    assert after(0, step=-DAY) == 29 * DAY + TRUST_S
    assert after(0, step=DAY) == 30 * DAY + TRUST_S
    after(0, step=2 * DAY)
    assert after(TRUST_S) == 32 * DAY + 2 * TRUST_S  # it was set right
    assert after(5) == 32 * DAY + 2 * TRUST_S + 5


def test_a_process_that_starts_while_the_clock_is_wrong():
    """The offset of the one that started it, when the clock was right, holds."""
    clock = SteadyClock(offset=1000.0, wall=lambda: 1000.0 + 70.0 + 10 * DAY, monotonic=lambda: 70.0)
    assert clock.now() == 1070.0

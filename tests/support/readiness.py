"""States of a router's parts."""

from concurrent.futures import wait

from ragbandit.router.serving.health.readiness import Readiness


def states_of(readiness: Readiness) -> dict[str, str]:
    """Try all parts for at most REPLY_S. Returns their states."""
    futures, seconds = readiness.start_checks()
    wait(futures, seconds)
    return readiness.states()

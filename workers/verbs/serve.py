"""Verb `serve`."""

import signal

from ragbandit.router.cli.console import ConfigOption, HostOption, PortOption, listen_on


def serve(config: ConfigOption = None, host: HostOption = None, port: PortOption = None) -> None:
    """Run the HTTP service alone (Redis, workers and the learner run elsewhere). SIGHUP reads the arms again."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # too early is no reason to die
    # After that: it takes a second to load.
    from ragbandit.workers.verbs.service import run_service

    listen_on(host=host, port=port)
    run_service(config)

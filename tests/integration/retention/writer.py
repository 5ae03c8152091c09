"""A process that decides, reports and learns until its standard input is closed; says when it has begun.

Called with the settings as JSON.
"""

import sys
import threading

from ragbandit.router.config.settings import Settings
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router

if __name__ == "__main__":
    settings = Settings.model_validate_json(sys.argv[1], strict=False)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with Router.open(settings, jobs=MemoryJobs()) as router:
        number = 0
        while not ended.is_set():
            number += 1
            decision = router.route(f"question {number}")
            router.outcome(decision.id, answer="Paris", steps=1)
            router.feedback(decision.id, rating=number % 3 != 0)
            if number % 10 == 0:
                router.learn()
            if number == 30:
                print("writing", flush=True)  # noqa: T201

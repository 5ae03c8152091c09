"""A decision is stored before its model is asked, so that every call that is paid has its decision."""

import threading

import pytest

from ragbandit.shared.errors import StoreError
from ragbandit.testing.openai_server import Reply, ScriptedServer


@pytest.mark.parametrize(("error", "status"), [(None, 200), (StoreError("the disk is full"), 503)])
@pytest.mark.parametrize("stream", [False, True])
def test_model_is_asked_after_the_commit(serve, stream, error, status):
    """No model is asked while the commit lasts, or after it failed, and a failed commit leaves nothing behind."""
    began, released = threading.Event(), threading.Event()
    with ScriptedServer({"": Reply(text="Paris")}) as server:
        generator = {"name": "openai", "model": "m", "openai": {"base_url": server.url}}
        service = serve(inline=True, generator=generator, arms={"a": {"class": "model"}})
        commit = service.router.service.store.add_decisions

        def held(group, **options):
            began.set()
            assert released.wait(20)
            if error is not None:
                raise error
            return commit(group, **options)

        service.router.service.store.add_decisions = held
        replies = []
        body = {"model": "auto", "stream": stream, "messages": [{"role": "user", "content": "Where?"}]}
        thread = threading.Thread(target=lambda: replies.append(service.http.post("/v1/chat/completions", json=body)))
        try:
            thread.start()
            assert began.wait(20)
            assert not server.requests
            released.set()
            thread.join(20)
            assert (replies[0].status_code, len(server.requests)) == (status, int(error is None))
            answers = service.router.process.answers
            assert (len(answers._unanswered), service.router.service.inline._context.active_runs.claimed_ids()) == (
                0,
                [],
            )
        finally:
            released.set()
            service.close()

"""From a chat in Open WebUI to what the policy learns: header, decision, answer, thumb, import, ledger."""

import threading
import time

from ragbandit.router.config.importers import ImportersSettings
from ragbandit.router.importers.importing import Importer
from ragbandit.router.importers.registry import make_source
from tests.support.servers.feedback_servers import OpenWebUiTwin
from tests.support.servers.http_service import QUESTION


def test_a_thumb_in_open_webui_teaches_the_policy(service, answers, monkeypatch):
    """The rating of a message makes the reward of the decision that answered it; a message of nobody's makes none."""
    answers()
    headers = {"X-OpenWebUI-Message-Id": "message-1", "X-OpenWebUI-Chat-Id": "chat-1"}
    body = {"model": "auto", "messages": [{"role": "user", "content": QUESTION}]}
    reply = service.http.post("/v1/chat/completions", json=body, headers=headers)
    decision_id = reply.json()["id"].removeprefix("chatcmpl-")
    router, ending = service.router, threading.Event()
    with OpenWebUiTwin() as twin:
        for variable, key in twin.environment.items():
            monkeypatch.setenv(variable, key)
        twin.add("r1", at=time.time() - 1, rating=1, message="message-1")
        twin.add("r2", at=time.time() - 1, rating=-1, message="message-2")
        importers = ImportersSettings.model_validate({"openwebui": {"url": twin.url}})
        settings = router.settings.model_copy(update={"importers": importers})
        source = make_source("openwebui", settings=importers, database=router.database, ending=ending)
        report = Importer(source, store=router.store, settings=settings, clock=time.time, ending=ending).run()
        source.close()
    assert report.facts()["names"] == {"rating": {"imported": 1, "unmatched": 1}}
    assert router.learn() == 1
    record = router.decision(decision_id)
    assert (record.state, record.reward.quality, record.reward.judged_by) == ("learned", 1.0, "human")

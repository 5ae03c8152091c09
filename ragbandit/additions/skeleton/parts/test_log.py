from ragbandit.additions.skeleton.parts.log import OwnLog
from ragbandit.testing.logs import check_log_form


def test_log() -> None:
    check_log_form(OwnLog, records=[{"ticket_number": 7, "articles": [{"body": "Who wrote Dracula?"}]}])

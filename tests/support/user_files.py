"""The error of a reader of a file that never ends."""

import threading

from ragbandit.shared.errors import RagBanditError


def refusal(read, path):
    """The error of a reader, which has to come within 20 seconds."""
    errors = []

    def run():
        try:
            read(path)
        except RagBanditError as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for the pipe"
    assert errors, "it was read"
    return errors[0]

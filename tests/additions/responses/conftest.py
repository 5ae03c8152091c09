"""The fixtures of OpenAI's interface."""

from tests.integration.api.openai.conftest import answering, answers, client, decided, in_pieces
from tests.integration.api.openai.test_tool_loops import loops

__all__ = ["answering", "answers", "client", "decided", "in_pieces", "loops"]

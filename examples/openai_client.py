"""A chat with OpenAI's own client: the policy chooses the arm, a worker answers, and the reply's id takes a rating.

    ragbandit up                         # with an index: ragbandit index build --corpus CORPUS.jsonl
    pip install 'openai>=1.50,<4'
    python -m ragbandit.examples.openai_client "Who wrote Dracula?"

The address is RAGBANDIT_URL, a key RAGBANDIT_API_KEY.
"""

import os
import sys

from openai import OpenAI

from ragbandit import Client

URL = os.environ.get("RAGBANDIT_URL", "http://127.0.0.1:8100")


def main(question: str) -> None:
    key = os.environ.get("RAGBANDIT_API_KEY", "not-needed")
    with OpenAI(base_url=f"{URL}/v1", api_key=key) as chats:
        pieces = chats.chat.completions.create(
            model="auto", messages=[{"role": "user", "content": question}], stream=True
        )
        completion = model = ""
        for piece in pieces:
            completion, model = piece.id, piece.model
            print("".join(choice.delta.content or "" for choice in piece.choices), end="", flush=True)
    print(f"\n({model}, {completion})")
    with Client(URL) as service:
        service.feedback(completion, rating=True, rater="example")  # in your product: what the user clicked


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "Who wrote Dracula?")

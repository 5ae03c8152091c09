"""Two pipelines of your own behind one router: it chooses one, your code runs it, and ratings of users train it.

    ragbandit up --config examples/bring_your_own_pipelines.yaml   # arms: fast and deep, both `run_by: caller`
    python -m ragbandit.examples.bring_your_own_pipelines

The address is RAGBANDIT_URL, a key RAGBANDIT_API_KEY. If the service is unreachable, `fast` answers.
"""

from ragbandit import Client

HANDBOOK = {
    "Who wrote Dracula?": "Bram Stoker",
    "Who wrote the novel that the film Clueless is based on?": "Jane Austen",
}


def fast(question: str) -> dict[str, object]:
    """One search, one call of a small model: here a table of short questions."""
    return {"text": HANDBOOK[question] if len(question) < 40 else "I do not know", "rounds": 1}


def deep(question: str) -> dict[str, object]:
    """Several rounds of search: here the same table, and the steps of three rounds."""
    return {"text": HANDBOOK[question], "rounds": 3}


def outcome_of(answer: dict[str, object]) -> dict[str, object]:
    """Outcome to report for an answer; seconds are measured."""
    return {"answer": answer["text"], "steps": answer["rounds"]}


def main() -> None:
    with Client(default_arm="fast") as client:
        ask = client.arms({"fast": fast, "deep": deep}, outcome_of=outcome_of)

        for question, gold in HANDBOOK.items():
            run = ask(question)
            thumb = run.value["text"] == gold  # in your product: what the user clicked
            client.feedback(run.decision_id, rating=thumb, rater="example")
            print(f"{run.arm:5} {run.value['text']}" + (" (no service)" if run.degraded else ""))


if __name__ == "__main__":
    main()

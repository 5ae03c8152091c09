"""README's Python in functions, for the type checker: README's calls pass `mypy --strict`, and calls with slips fail.

A test compares the calls with README's; `make lint` checks their types. The functions are not run.
"""

from collections.abc import Callable
from typing import Any

from ragbandit import Client, Router


def my_pipeline(question: str) -> dict[str, Any]:
    return {"answer": question, "steps": 1}


def my_better_one(question: str) -> dict[str, Any]:
    return {"answer": question, "steps": 4}


def library() -> None:
    pipelines: dict[str, Callable[[str], tuple[str, int]]] = {}
    questions = {"Who wrote Dracula?": ["Bram Stoker"], "Who wrote Emma?": ["Jane Austen", "Austen"]}

    with Router.open() as router:  # ./config.yaml and the environment
        for question, gold in questions.items():
            decision = router.route(question)  # stored before you see it
            print(decision.arm, decision.probabilities)  # the arm drawn, and the probability of each
            answer, steps = pipelines[decision.arm](question)
            router.outcome(decision.id, answer=answer, steps=steps)  # what it took
            router.feedback(decision.id, label=gold)  # or rating=True, or rating=4, scale="1-5"
            router.learn()  # the next question is decided with it; a service has a learner process of its own
        assert router.verify().ok  # every draw and the whole learning, recomputed from the store


def service() -> None:
    with Client(default_arm="fast") as client:  # the fallback arm if the service is unreachable
        ask = client.arms({"fast": my_pipeline, "deep": my_better_one}, outcome_of=lambda found: found)
        run = ask("Who wrote Dracula?")  # choose, run, report: both return {"answer": "Bram Stoker", "steps": 1}
        client.feedback(run.decision_id, rating="Stoker" in run.value["answer"])


def arms_of_a_question(router: Router, client: Client) -> None:
    decision = router.route("Who wrote Dracula?", id="order-17", arms=["fast", "deep"], tenant="acme")
    reply = client.route("Who wrote Dracula?", decision_id="order-18", arms=["fast", "deep"], context={"tier": "free"})
    client.outcome(reply["decision_id"], answer="Bram Stoker", steps=1, cost={"dollars": 0.001})
    client.feedback(decision.id, rating=4, scale="1-5")


def slips(router: Router, client: Client) -> None:
    router.route("Who wrote Dracula?", tennant="acme")  # type: ignore[call-arg]
    client.feedback("order-17", raiting=True)  # type: ignore[call-arg]
    client.outcome("order-17", stepps=1)  # type: ignore[call-arg]
    client.route("Who wrote Dracula?", contxt={})  # type: ignore[call-arg]
    client.report("order-17", seconds=1.0, answr="")  # type: ignore[call-arg]
    client.arms({"fast": my_pipeline})("Who wrote Dracula?", tennant="acme")  # type: ignore[call-arg]

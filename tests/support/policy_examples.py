"""Example params of every policy, other than its defaults: what the contract is checked with."""

from ragbandit.router.policies import make_policy
from ragbandit.testing.policies import Make
from tests.support.tiny_models import tiny_encoder, tiny_trained

#: the policies that run a transformer of their own
FINE_TUNED = ("adaptive_rag", "mba_paper", "multi_label")

#: the fine-tuned policies, which read the question themselves
_READING: dict[str, object] = {"model": tiny_encoder(), "max_tokens": 16, "device": "cpu", "precision": "bfloat16"}
_FITTING: dict[str, object] = {
    **_READING,
    "threads": 1,
    "learning_rate": 1e-3,
    "batch": 4,
    "epochs": 2,
    "validation": 0.3,
    "seed": 3,
}

#: registry name -> params that differ from the defaults
EXAMPLES: dict[str, dict[str, object]] = {
    "adaptive_rag": {"single": "one", "multi": "many", **_FITTING, "trained": tiny_trained("adaptive_rag")},
    "conservative": {
        "incumbent": "multi_step",
        "harm": 0.2,
        "revision": 5,
        "policy": "linucb",
        "params": {"alpha": 2.0, "epsilon": 0.1, "ridge": 3.0, "bias_ridge": 0.5, "points": 32, "revision": 4},
    },
    "fixed": {"arm": "multi_step"},
    "linucb": {"alpha": 2.0, "epsilon": 0.1, "ridge": 3.0, "bias_ridge": 0.5, "points": 32, "revision": 4},
    "mba": {
        "ridge": 3.0,
        "bias_ridge": 0.5,
        "explore": 0.7,
        "epsilon_min": 0.1,
        "memory": 50.0,
        "alarm": 100.0,
        "points": 32,
        "revision": 4,
        "facts": {"no_retrieval": {"model": "small"}, "single_step": {"model": "small"}},
    },
    "mba_paper": {
        **_READING,
        "threads": 1,
        "seed": 3,
        "learning_rate": 1e-3,
        "weight_decay": 0.1,
        "total": 30,
        "floor": 1e-4,
        "warmup": 0.1,
        "loss": "code",
        "reward": "single",
        "failure": "code",
    },
    "mixture": {"first": "single_step", "second": "multi_step", "share": 0.3},
    "multi_label": {"choice": "net", "tau": 0.7, "weight": 0.1, **_FITTING, "trained": tiny_trained("multi_label")},
    "uniform": {},
    "vw": {
        "explorer": "epsilon",
        "epsilon": 0.1,
        "gamma_scale": 3.0,
        "cb_type": "dr",
        "learning_rate": 0.05,
        "power_t": 0.5,
        "bits": 16,
    },
}


#: policies that learn in blocks as well, with small ones, so that a check of 40 rows has several
IN_BLOCKS = ("linucb", "mba")


#: policies that learn from the context, and a schema over what examples.made_query sends and what is read off it
WITH_CONTEXT = ("conservative", "linucb", "mba", "vw")
SCHEMA: dict[str, dict[str, object]] = {
    "hop": {"type": "number"},
    "length": {"type": "question_length"},
    "never_sent": {"type": "boolean"},
    "spoken": {"type": "language", "values": ["en", "de"]},
    "tenant": {"type": "tenant", "hashed": 4},
    "user": {"type": "category", "values": ["u0", "u1", "u2"]},
}


def block_maker(name: str) -> Make:
    """A maker of the policy with its example params, that learns in blocks of four rows (mba: as its memory allows)."""
    return lambda: make_policy(name, params=EXAMPLES[name] | _blocks(name))


def context_maker(name: str) -> Make:
    """Returns a function that makes the policy with its example params and the schema, with small blocks if it has
    blocks.
    """
    more = _blocks(name) if name in IN_BLOCKS else {}
    return lambda: make_policy(name, params={**EXAMPLES[name], **more, "context": SCHEMA})


def _blocks(name: str) -> dict[str, object]:
    return {"memory": 64.0} if name == "mba" else {}


def maker(name: str) -> Make:
    """A maker of the policy with its example params."""
    assert name in EXAMPLES, f"policy {name!r} has no example params in EXAMPLES"
    return lambda: make_policy(name, params=EXAMPLES[name])

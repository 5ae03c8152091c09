"""Functions that make each built-in policy with the example params of its class."""

from ragbandit.router.policies import built_in_policies, make_policy
from ragbandit.router.policies.base import PolicyParams
from ragbandit.testing.params import other_params
from ragbandit.testing.policies import Make
from tests.support.tiny_models import tiny_counts, tiny_encoder, tiny_threshold, tiny_trained

POLICIES = built_in_policies()
#: the policies that run a transformer of their own
FINE_TUNED = tuple(name for name in ("adaptive_rag", "mba_paper", "multi_label") if name in POLICIES)
#: policies that learn from the context, and a schema over what made_query sends and what is read off it
WITH_CONTEXT = tuple(name for name, kind in POLICIES.items() if getattr(kind, "takes_context", False))
SCHEMA: dict[str, dict[str, object]] = {
    "hop": {"type": "number"},
    "never_sent": {"type": "boolean"},
    "tenant": {"type": "tenant", "hashed": 4},
    "user": {"type": "category", "values": ["u0", "u1", "u2"]},
}


def params_of(name: str) -> type[PolicyParams]:
    """The params dataclass of a policy."""
    return type(make_policy(name, params=_example(name))._params)


def example(name: str) -> dict[str, object]:
    """Params of a policy, none at its default, as its class declares them or its types determine them."""
    return other_params(params_of(name), example=_example(name))


def _example(name: str) -> dict[str, object]:
    params = dict(POLICIES[name].example)
    if name in FINE_TUNED:
        params["model"] = tiny_encoder()
    if name in ("adaptive_rag", "multi_label"):
        params["trained"] = tiny_trained(name)
    if name == "popularity":
        params |= {"counts": tiny_counts(), "trained": tiny_threshold()}
    return params


def maker(name: str, **more: object) -> Make:
    """A function that makes the policy with its example params and these."""
    params = example(name) | more
    return lambda: make_policy(name, params=params)


def context_maker(name: str) -> Make:
    """A function that makes the policy with its example params and the schema; mba learns in small blocks."""
    return maker(name, context=SCHEMA, **({"memory": 64.0} if name == "mba" else {}))

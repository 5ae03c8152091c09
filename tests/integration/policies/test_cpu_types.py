"""Propensities and states do not hang on which of numpy's loops a CPU can run."""

import ast
import hashlib
import json
from pathlib import Path

import numpy as np

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import pmf_of_one
from ragbandit.router.policies.finetuned.adaptive_rag import AdaptiveRag
from ragbandit.router.policies.finetuned.multi_label import MultiLabel
from ragbandit.shared.types import ArmName
from ragbandit.testing.policies import pmf_of, sha_of, taught
from ragbandit.testing.policy_examples import ARMS, made_features, made_query, made_updates
from tests.support.other_processor import printed_with_other_loops
from tests.support.policy_examples import EXAMPLES, SCHEMA

ROOT = Path(__file__).parents[3]
#: functions of numpy with other loops for other CPUs; sums, roots, einsum and logaddexp have one for all
ROUNDED = {
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "power", "float_power", "cbrt"),
    *("sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2"),
    *("sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh"),
}
TWENTY = tuple(ArmName(f"arm_{number:02}") for number in range(20))
#: lessons that fill blocks, of a width that BLAS has loops of its own for; lessons of many arms
WIDE, MANY = made_updates(250, size=150), made_updates(60, arms=TWENTY)


def fingerprints():
    """Name -> hash of outputs and state after 60 lessons; of the classifiers, which torch runs, of the last step."""
    lessons = made_updates(60)
    cases = {name: EXAMPLES[name] for name in ("conservative", "linucb", "mba", "popularity")}
    found = {}
    cases |= {
        "linucb with context": {"context": SCHEMA},
        "mba in blocks with context": {"block": 8, "context": SCHEMA},
    }
    for case, params in cases.items():
        policy, said = make_policy(case.split()[0], params=params), []
        for lesson in lessons:
            said.append(pmf_of_one(policy, made_query(lesson.seq), features=made_features(lesson.seq), arms=ARMS))
            policy.learn(lesson)
        found[case] = digest(said) + sha_of(policy)
    found["mba in blocks"] = sha_of(taught(lambda: make_policy("mba", params={"block": 64}), WIDE))
    found["linucb over many arms"] = digest(pmf_of(taught(lambda: make_policy("linucb", params={}), MANY), arms=TWENTY))
    outputs = np.random.default_rng(3).normal(0.0, 4.0, (300, 3))
    for kind in (AdaptiveRag, MultiLabel):
        found[kind.algorithm] = digest([kind._probabilities(None, row).tolist() for row in outputs])
    return found


def digest(said):
    return hashlib.sha256(repr(said).encode()).hexdigest()


def test_policies_are_the_same_with_other_loops():
    """With AVX2 and AVX512 switched off, and BLAS's loops for an old processor, all is the same, to the last bit.

    Every policy that runs on numpy says and becomes the same.
    """
    code = "import json\nfrom tests.integration.policies.test_cpu_types import fingerprints\n"
    code += "print(json.dumps(fingerprints()))"
    assert json.loads(printed_with_other_loops(code)) == fingerprints()


def test_no_policy_calls_what_numpy_rounds_by_cpu():
    """No file of the policies uses numpy's exponentials, logarithms, powers or angles; Python's `math` has them."""
    found = [
        f"{file.name}:{node.lineno} np.{node.attr}"
        for file in sorted((ROOT / "router" / "policies").rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.value.id == "np" and node.attr in ROUNDED
    ]
    assert found == []

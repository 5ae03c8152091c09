"""Checks of the contract of policies. They need no test framework.

    @pytest.mark.parametrize("check", POLICY_CHECKS)
    def test_mine(check):
        check(lambda: make_policy("my_policies:MeanReward", params={"epsilon": 0.3}))

A check takes a function that makes a fresh policy, and raises AssertionError if the policy breaks the contract. Use
params that are not the defaults. Questions, features, arms and rewards are random with a fixed seed.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from ragbandit.router.learning.snapshots import SnapshotFiles, pack
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Arrays, Policy, apply_update, pmf_of_one, restore_policy
from ragbandit.router.policies.draw import checked_pmf
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import PolicyFault, SnapshotError
from ragbandit.shared.types import ArmName, DecisionId, Features, FeedbackId, PolicyLabel, Query, Reward, Update

ARMS = (ArmName("no_retrieval"), ArmName("single_step"), ArmName("multi_step"))
LABEL = PolicyLabel("checked")
ENCODER = "e" * 64
DIMENSION = 24
_WORDS = ("who", "wrote", "dracula", "born", "city", "river", "before", "after", "both", "when", "film", "director")

#: allowed names of arms that code may handle wrongly
_ODD_NAMES = (
    *("never_seen", "a/b", "mean/a", "données", "__metadata__"),
    *(" ", "\x00", "\ud800", "😀", "A" * 64, "0", ".."),
)


def made_offers(*, seed: int = 0) -> list[tuple[ArmName, ...]]:
    """Offers of one to six distinct arms in any order. Some arms are unknown to the policy."""
    rng = np.random.default_rng(seed)
    names = ARMS + tuple(map(ArmName, _ODD_NAMES))
    orders = [rng.permutation(len(names))[: rng.integers(1, 7)] for _ in range(25)]
    return [*(tuple(names[index] for index in order) for order in orders), ARMS, ARMS[:1]]


def made_features(seed: int, *, size: int = DIMENSION) -> Features:
    """The features of a question, shape (size,)."""
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


@lru_cache(4096)
def made_text(seed: int) -> str:
    """A question of five random words."""
    return " ".join(np.random.default_rng(seed).choice(_WORDS, size=5)) + "?"


def made_query(seed: int) -> Query:
    """A question with a context."""
    return Query(text=made_text(seed), context={"hop": seed % 3, "user": f"u{seed % 5}"})


def made_updates(
    count: int, *, arms: Sequence[ArmName] = ARMS, seed: int = 0, size: int = DIMENSION, first: int = 1
) -> list[Update]:
    """Ledger rows numbered from `first`, with uniformly drawn arms, rewards in [-0.5, 1] and read-only features."""
    return list(_updates(count, tuple(arms), seed=seed, size=size, first=first))


@lru_cache(64)
def _updates(count: int, arms: tuple[ArmName, ...], *, seed: int, size: int, first: int) -> tuple[Update, ...]:
    rng = np.random.default_rng([seed, first])
    rows = tuple(
        Update(
            policy=LABEL,
            seq=seq,
            decision_id=DecisionId(f"d-{seed}-{seq}"),
            arm=arms[int(rng.integers(len(arms)))],
            query=made_query(1000 * seed + seq),
            arms=arms,
            pmf=(1.0 / len(arms),) * len(arms),
            scores=None,
            propensity=float(rng.uniform(0.05, 1.0)),
            reward=made_reward(float(rng.uniform(0.0, 1.0)), cost=float(rng.uniform(0.0, 5.0))),
            feedback_ids=(FeedbackId(f"f-{seed}-{seq}"),),
            features=made_features(1000 * seed + seq, size=size),
            made_at=1.7e9 + seq,
        )
        for seq in range(first, first + count)
    )
    for row in rows:
        if row.features is not None:
            row.features.flags.writeable = False
    return rows


def made_reward(quality: float, *, cost: float = 0.0, weight: float = 0.1) -> Reward:
    """The reward of a judged answer."""
    return Reward(
        value=quality - weight * cost,
        quality=quality,
        cost=cost,
        weight=weight,
        minimum=-1.0,
        maximum=1.0,
        terms={"steps": 1.0},
        preset="f1",
        source="explicit",
    )


Make = Callable[[], Policy]


def taught(make: Make, updates: Sequence[Update]) -> Policy:
    """A fresh policy that has learned these updates."""
    policy = make()
    for update in updates:
        policy.learn(update)
    return policy


def sha_of(policy: Policy) -> str:
    """The sha256 of the policy's state."""
    return pack(policy, label=LABEL, last_seq=0, encoder_hash=ENCODER, now=0.0)[0].sha256


def pmf_of(policy: Policy, *, seed: int = 7, arms: Sequence[ArmName] = ARMS) -> dict[ArmName, float]:
    """Arm -> probability for one question. Raises PolicyFault unless the output is a valid pmf."""
    output = pmf_of_one(policy, made_query(seed), features=made_features(seed), arms=tuple(arms))
    return dict(zip(arms, checked_pmf(output, arms=arms), strict=True))


def through_files(policy: Policy, *, last_seq: int = 0) -> Policy:
    """Write the policy to snapshot files, and load it from them."""
    with tempfile.TemporaryDirectory() as folder:
        files = SnapshotFiles(folder)
        info, tensors, described = pack(policy, label=LABEL, last_seq=last_seq, encoder_hash=ENCODER, now=1.0)
        files.write(info, tensors, described)
        return files.load(info, encoder_hash=ENCODER)[0]


def check_pmf_over_any_arms(make: Make) -> None:
    """A fresh and a taught policy return a valid pmf for one to six arms, known or unknown, in any order."""
    policies = (make(), taught(make, made_updates(30)))

    for seed, arms in enumerate(made_offers()):
        for policy in policies:
            pmf = pmf_of(policy, seed=seed, arms=arms)
            assert abs(sum(pmf.values()) - 1.0) < 1e-12, pmf
            assert all(0.0 <= p <= 1.0 for p in pmf.values()), pmf


def check_pmf_ignores_the_order(make: Make) -> None:
    """The probabilities do not depend on the order of the arms."""
    policy = taught(make, made_updates(30))

    rng = np.random.default_rng(1)
    for arms in made_offers(seed=1):
        shuffled = pmf_of(policy, arms=tuple(arms[index] for index in rng.permutation(len(arms))))
        ordered = pmf_of(policy, arms=arms)
        assert all(abs(p - ordered[arm]) <= 1e-9 for arm, p in shuffled.items()), (shuffled, ordered)


def check_counts_what_it_learned(make: Make) -> None:
    """The state contains the number of updates, and `seen` the number per arm. A snapshot restores both."""
    assert make().state()[1]["updates"] == 0
    assert not any(make().seen.values())
    updates = made_updates(13)
    policy = taught(make, updates)
    assert policy.state()[1]["updates"] == 13
    counts = Counter(update.arm for update in updates)
    for counted in (policy, through_files(policy)):
        assert {arm: counted.seen.get(arm, 0) for arm in ARMS} == {arm: counts[arm] for arm in ARMS}


def check_snapshot_round_trip(make: Make) -> None:
    """A policy that is restored from files has the same sha256 and pmf, whatever the names of its arms."""
    odd = tuple(ArmName(name) for name in ("a/b", "mean/a", "données", "__metadata__"))
    for updates in ([], made_updates(30), made_updates(30, arms=odd)):
        policy = taught(make, updates)
        restored_policy = through_files(policy)
        assert sha_of(restored_policy) == sha_of(policy)
        assert pmf_of(restored_policy, arms=ARMS + odd) == pmf_of(policy, arms=ARMS + odd)


def check_learns_on_after_restore(make: Make) -> None:
    """The same updates lead to the same policy, also with snapshots and questions in between (design promise 4)."""
    updates = made_updates(36)
    straight = taught(make, updates)
    assert sha_of(taught(make, updates)) == sha_of(straight)
    policy, cuts = make(), (1, 8, 9, 22)
    for start, end in zip((0, *cuts), (*cuts, len(updates)), strict=True):
        for update in updates[start:end]:
            policy.learn(update)
        before = sha_of(policy)
        pmf_of(policy, seed=end, arms=(ArmName("never_seen"), *ARMS))
        assert sha_of(policy) == before, "asking for a pmf changed the policy"
        policy = through_files(policy, last_seq=end)
    assert sha_of(policy) == sha_of(straight)
    assert pmf_of(policy) == pmf_of(straight)


def check_restored_policies_share_nothing(make: Make) -> None:
    """If two policies are restored from the same arrays and one of them learns, the other does not change."""
    arrays, facts = taught(make, made_updates(20)).state()
    arrays = {name: array.copy() for name, array in arrays.items()}
    learner, server = make(), make()
    restore_policy(learner, arrays, facts)
    restore_policy(server, arrays, facts)
    before = sha_of(server)
    for update in made_updates(10, first=21):
        learner.learn(update)
    assert sha_of(server) == before


def check_params_round_trip(make: Make) -> None:
    """`params` are JSON, and `make_policy` makes the same fresh policy from them."""
    policy = make()
    canonical(dict(policy.params))
    copy = make_policy(policy.algorithm, params=policy.params)
    assert dict(copy.params) == dict(policy.params)
    assert sha_of(copy) == sha_of(policy)
    assert pmf_of(copy) == pmf_of(policy)


def check_arms_come_and_go(make: Make) -> None:
    """An arm can be added after many updates, be learned, and be removed again."""
    newcomer = ArmName("newcomer")
    policy = taught(make, made_updates(20))
    assert newcomer in pmf_of(policy, arms=(*ARMS, newcomer))
    for update in made_updates(20, arms=(*ARMS, newcomer), first=21):
        policy.learn(update)
    assert set(pmf_of(policy, arms=(newcomer,))) == {newcomer}
    assert set(pmf_of(through_files(policy), arms=ARMS[1:])) == set(ARMS[1:])


def check_batch_is_each_alone(make: Make) -> None:
    """A deterministic policy's output for a question is the same in a batch of any size and order as without others."""
    offers = ((ARMS[0],), ARMS, ARMS[::-1], (ArmName("never_seen"), *ARMS), ARMS[1:])
    for policy in (make(), taught(make, made_updates(30))):
        alone = [
            pmf_of_one(policy, made_query(seed), features=made_features(seed), arms=offered)
            for seed, offered in enumerate(offers)
        ]
        assert policy.pmf([], features=np.empty((0, DIMENSION), dtype=np.float32), arms=[]) == []
        for order in ([0, 1], [4, 2, 0], [0, 1, 2, 3, 4], [3] * 9, [*range(5)] * 7):
            if policy.deterministic:
                rows = np.stack([made_features(seed) for seed in order])  # (n, d)
                queries = [made_query(seed) for seed in order]
                together = policy.pmf(queries, features=rows, arms=[offers[index] for index in order])
                assert list(together) == [alone[index] for index in order], f"questions {order}"


def check_facts_are_json(make: Make) -> None:
    """The facts of an output are a JSON object, and stay equal when they are written and read."""
    for policy in (make(), taught(make, made_updates(30))):
        for arms in (ARMS, ARMS[:1], (ArmName("never_seen"),)):
            facts = dict(pmf_of_one(policy, made_query(7), features=made_features(7), arms=arms).facts)
            assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def check_refused_update_changes_nothing(make: Make) -> None:
    """A policy that needs features raises PolicyFault for a row without features or with too few or too many of them.

    Such a row does not change the policy. This holds before and after the first update.
    """
    if "features" not in make().needs:
        return
    good = made_updates(20)
    wrong_sizes = made_updates(1, size=DIMENSION - 1) + made_updates(1, size=DIMENSION + 1)
    bad = [replace(good[0], features=None), *wrong_sizes]
    for before, rows in ((0, bad[:1]), (15, bad)):
        policy = taught(make, good[:before])
        for row in rows:
            sha256, pmf = sha_of(policy), pmf_of(policy)
            assert _raises(PolicyFault, partial(policy.learn, row)), "an unusable row was learned"
            assert not apply_update(policy, row)
            assert (sha_of(policy), pmf_of(policy)) == (sha256, pmf)
        for update in good[before:]:
            assert apply_update(policy, update)
        assert sha_of(policy) == sha_of(taught(make, good))


def _raises(error: type[Exception], call: Callable[[], object]) -> bool:
    try:
        call()
    except error:
        return True
    return False


def check_weight_zero_teaches_nothing(make: Make) -> None:
    """A row with sample weight 0 is counted, but does not change the pmf. A snapshot restores the weights."""
    updates = made_updates(21)
    policy = make()
    for number, update in enumerate(updates):
        before = pmf_of(policy)
        policy.learn(_weighted(update, 0.0))
        assert pmf_of(policy) == before, "a row of weight 0 changed the pmf"
        policy.learn(_weighted(update, 0.5))
        if number % 7 == 3:
            policy = through_files(policy)
    assert pmf_of(policy) == pmf_of(taught(make, [_weighted(update, 0.5) for update in updates]))
    assert sum(policy.seen.values()) == 2 * len(updates)


def _weighted(update: Update, sample_weight: float) -> Update:
    return replace(update, reward=replace(update.reward, sample_weight=sample_weight))


def check_refuses_a_broken_state(make: Make) -> None:
    """A policy raises SnapshotError for a state with NaN, a wrong shape, a missing array or invalid counts."""
    arrays, facts = taught(make, made_updates(20)).state()
    states = [(broken, facts) for broken in _broken_copies(arrays)]
    states += [(arrays, facts | counts) for counts in ({"updates": -1}, {"updates": None}, {"seen": {ARMS[0]: 1}})]
    for broken, broken_facts in states:
        assert _raises(SnapshotError, partial(restore_policy, make(), dict(broken), broken_facts)), (
            broken,
            broken_facts,
        )


def _broken_copies(arrays: Arrays) -> Iterator[Arrays]:
    """Copies of the arrays in which one array is missing, lacks its last row, or contains NaN."""
    for name, array in arrays.items():
        yield {key: value for key, value in arrays.items() if key != name}
        if array.size and array.ndim:
            yield arrays | {name: array[:-1]}
        if array.size and np.issubdtype(array.dtype, np.floating):
            with_nan = array.copy()
            with_nan.reshape(-1)[-1:] = np.nan
            yield arrays | {name: with_nan}


POLICY_CHECKS: list[Callable[[Make], None]] = [
    check for name, check in dict(globals()).items() if name.startswith("check_")
]

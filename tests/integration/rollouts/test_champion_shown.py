"""After a promotion the pages and `status` name what decides, not the policy that was retired."""

from ragbandit.router.api.ui.policies import _versions
from ragbandit.router.rollouts import verbs
from ragbandit.shared.types import PolicyLabel
from tests.support import command


def test_the_champion_is_shown(make_world, tmp_path, monkeypatch):
    """Ledger and algorithm on the page are those of the champion; `status` of the retired ledger names it."""
    world = make_world(policy={"name": "uniform"})
    base, told = PolicyLabel("main"), {"actor": "cli:ann@host", "reason": "better", "now": 100.0}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(
        f"{{data_dir: {world.settings.data_dir}, encoder: {{model: hashing, dimension: 8}}, policy: {{name: uniform}}}}"
    )
    assert _versions(world.router)["algorithm"] == "uniform"
    assert "champion" not in command.run("status").stdout
    changes = {"policy": {"name": "fixed", "params": {"arm": "single_step"}}}
    verbs.add(world.database, base=base, name="better", changes=changes, **told)
    for verb in ("shadow", "canary", "promote"):
        verbs.perform(
            world.database,
            verbs.Act(verb=verb, name="better", base=base, force=True, **told),
            settings=world.settings.rollout,
        )
    shown = _versions(world.router)
    assert (shown["algorithm"], shown["ledger"], shown["champion"].name) == ("fixed", "main.better", "better")
    done = command.run("status", code=0)
    assert "better (fixed) decides" in " ".join(done.stdout.split())

"""A live router logs decisions with known outcomes of all arms; a replay must estimate the values of other policies."""

import pytest
from rich.console import Console
from rich.progress import Progress

from benchmarks.replay_truth import OTHERS, judged, lived, made_table
from ragbandit.router.config.settings import PolicySettings, ServerSettings, Settings
from ragbandit.router.encoders.base import HashingEncoder
from ragbandit.router.storage.sql.database import Database, migrate

TABLE = made_table()


@pytest.fixture
def live(tmp_path):
    """Decisions of a real router on the made table, learned as they come; with the settings it ran under."""

    def run(*, decisions, seed):
        # A log of 4,000 decisions with the default floor of .01 tells half as much of the arms that are hardly drawn.
        server = ServerSettings(max_wait_s=60.0)  # a slow machine refuses nothing
        settings = Settings(data_dir=str(tmp_path / str(seed)), policy=PolicySettings(floor=0.02), server=server)
        database = Database(settings.database)
        migrate(database)
        database.close()
        with Progress(console=Console(quiet=True)) as progress:
            log = lived(
                TABLE, decisions=decisions, settings=settings, encoder=HashingEncoder(64), seed=seed, progress=progress
            )
        return log, settings

    return run


@pytest.mark.slow
def test_truth_is_inside(live):
    """On 4,000 live decisions the true values of five other policies are in their 99 % intervals."""
    log, settings = live(decisions=4_000, seed=0)
    assert len(log.log) == 4_000
    assert len(set(log.log.fields["version"])) > 10, "the live policy learned while it logged"
    found = judged(log, table=TABLE, settings=settings, confidence=0.99)
    assert [one.name for one in found] == [*OTHERS]
    assert [one.name for one in found if not one.inside] == []
    for one in found:
        assert one.high - one.low < 0.3, "an interval that says nothing is no success"
    assert max(one.truth for one in found) - min(one.truth for one in found) > 0.1, "the five are not alike"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_truth_is_inside_as_often_as_promised(live):
    """On 20,000 live decisions with three seeds, 95 % intervals contain the truth nine times in ten."""
    found = []
    for seed in range(3):
        log, settings = live(decisions=20_000, seed=seed)
        found += judged(log, table=TABLE, settings=settings, confidence=0.95)
    assert sum(one.inside for one in found) >= 0.9 * len(found)

"""A made next release: the migrations of this tree and one more, for the tests of releases that share a database."""

import shutil
from pathlib import Path

import pytest

from ragbandit.router.storage.sql import schema
from ragbandit.router.storage.sql.tables import SCHEMA_REVISION

ROOT = Path(__file__).parents[2]
#: the revision of the made migration
NEXT = str(int(SCHEMA_REVISION) + 1).zfill(4)

_MIGRATION = '''"""Made for a test: a column and a table more."""

import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{before}"
oldest_code = "{oldest_code}"


def upgrade() -> None:
    op.add_column("decisions", sa.Column("made_for_a_test", sa.Text()))
    op.create_table("made_for_a_test", sa.Column("number", sa.Integer(), primary_key=True))
'''


def write_migration(folder: Path, *, oldest_code: str = SCHEMA_REVISION) -> None:
    """Add the made migration to the folder `versions` of migrations."""
    made = _MIGRATION.format(revision=NEXT, before=SCHEMA_REVISION, oldest_code=oldest_code)
    (folder / f"{NEXT}_made.py").write_text(made)


def copy_of_tree(folder: Path) -> Path:
    """The source of the next release: this tree with the made migration."""
    left_out = shutil.ignore_patterns(".*", "__pycache__", "tests", "benchmarks", "examples", "deploy", "*.db")
    shutil.copytree(ROOT, folder, symlinks=True, ignore=left_out)
    write_migration(folder / "migrations" / "versions")
    tables, index = folder / "router" / "storage" / "sql" / "tables.py", '    Index("decisions_made_at", "made_at"),'
    added = f'    Column("made_for_a_test", Text, info={{"since": "{NEXT}"}}),'
    text = tables.read_text()
    for old, new in (
        (f'SCHEMA_REVISION = "{SCHEMA_REVISION}"', f'SCHEMA_REVISION = "{NEXT}"'),
        (index, f"{added}\n{index}"),
    ):
        assert old in text
        text = text.replace(old, new)
    tables.write_text(text)
    return folder


@pytest.fixture
def become_next_release(tmp_path, monkeypatch):
    """Let this process be of the next release, which brings the made migration."""

    def become(*, oldest_code: str = SCHEMA_REVISION, needs: str = SCHEMA_REVISION) -> None:
        scripts = tmp_path / "migrations"
        shutil.copytree(ROOT / "migrations", scripts, ignore=shutil.ignore_patterns("__pycache__"))
        write_migration(scripts / "versions", oldest_code=oldest_code)
        monkeypatch.setattr(schema, "SCRIPTS", str(scripts))
        monkeypatch.setattr(schema, "SCHEMA_REVISION", NEXT)
        monkeypatch.setattr(schema, "OLDEST_REVISION", needs)
        schema.migration_steps.cache_clear()

    yield become
    monkeypatch.undo()
    schema.migration_steps.cache_clear()

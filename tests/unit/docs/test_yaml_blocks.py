"""Every YAML block of a page is a configuration that loads."""

import re
from pathlib import Path

import pytest
import yaml

from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import Settings
from ragbandit.shared.additions import additions
from tests.support.additions import ANTHROPIC, marked
from tests.support.pages import names_without

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: first key of a block -> the program whose configuration it is
OF_OTHERS = {"image": "Helm", "model_list": "LiteLLM", "endpoints": "LibreChat"}
#: an indented block that begins with a setting
_INDENTED = rf"(?<=\n\n)((?: {{4}}(?:{'|'.join(Settings.model_fields)}):[^\n]*\n)(?: {{4}}[^\n]*\n)*)"
BLOCKS = [
    (path.relative_to(ROOT).as_posix(), text)
    for path in PAGES
    for found in re.finditer(rf"^```yaml\n(.*?)^```|{_INDENTED}", path.read_text(encoding="utf-8"), re.DOTALL | re.M)
    for text in [found[1] or found[2]]
]


@pytest.mark.parametrize(("page", "text"), marked(BLOCKS), ids=[page for page, _ in BLOCKS])
def test_a_block_of_settings_loads(page, text, tmp_path):
    """A block has only known settings with possible values, or is the configuration of a named other program."""
    tree = yaml.safe_load(text)
    if next(iter(tree)) in OF_OTHERS or (ANTHROPIC is None and "name: anthropic" in text):
        return
    if "embeddings" in tree.keys() - additions().keys():
        return
    named = {f"{section}.{key}" for section, keys in tree.items() if isinstance(keys, dict) for key in keys}
    if named & names_without():
        return  # a setting of an addition that this tree lacks
    (tmp_path / "config.yaml").write_text(text)
    assert load(tmp_path / "config.yaml", environ={}).rows


def test_blocks_are_found():
    """Fenced and indented blocks are read, and each other program's configuration is still documented."""
    assert len(BLOCKS) > 40
    assert {"docs/drift.md", "docs/gateway.md"} <= {page for page, _ in BLOCKS}
    assert {next(iter(yaml.safe_load(text))) for _, text in BLOCKS} >= OF_OTHERS.keys()

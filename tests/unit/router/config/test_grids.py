"""Grids of arms: which plain arms they become, names that stay, and what is refused."""

import pytest

from ragbandit.router.config.grids import expand_grids
from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import Settings
from ragbandit.router.rollouts.version_settings import settings_with
from ragbandit.shared.errors import ConfigError

GRID = {"generator": ["small", "large"], "rounds": [2, 4]}
VALUES = {
    "deep": {"generator": "small", "rounds": 2},
    "deep.rounds-4": {"generator": "small", "rounds": 4},
    "deep.generator-large": {"generator": "large", "rounds": 2},
    "deep.generator-large.rounds-4": {"generator": "large", "rounds": 4},
}


def arms_with(values):
    """The arms of a grid with these values, each with its values as facts."""
    return {
        name: {"class": "multi_step", **own, "facts": {key: str(one) for key, one in own.items()}}
        for name, own in values.items()
    }


def arms_of(grid, **beside):
    return expand_grids({"deep": {"class": "multi_step", **beside, "grid": grid}})


def test_a_grid_is_plain_arms():
    """Readers of the settings see single arms, next to those without a grid, and reading them again gives the same."""
    read = Settings(arms={"fast": None, "deep": {"class": "multi_step", "grid": GRID}})
    assert read.arms == {"fast": {}} | arms_with(VALUES)
    assert Settings.model_validate(read.model_dump()) == read


@pytest.mark.parametrize(
    "grown",
    [
        {"rounds": [2, 4], "generator": ["small", "large"]},
        {"generator": ["small", "large", "huge"], "rounds": [2, 4, 8]},
        {**GRID, "passages": [5]},
        {**GRID, "a_first": [5, 10], "z_last": [None, True, 0.5]},
    ],
    ids=["order of params", "values", "a param of one value", "params"],
)
def test_names_stay_when_the_grid_grows(grown):
    """Every arm that was there has its name, and under it what it had, with the first values of new params."""
    new = {key: values[0] for key, values in grown.items() if key not in GRID}
    arms = arms_of(grown)
    assert {name: arms[name] for name in VALUES} == arms_with({name: own | new for name, own in VALUES.items()})


def test_a_grid_in_a_file(tmp_path):
    """What it became is shown with where it comes from; an error names the setting and the file."""
    file = tmp_path / "config.yaml"
    file.write_text("arms: {fast: , deep: {class: multi_step, grid: {rounds: [2, 4]}}}")
    shown = {key: (value, source) for key, value, source in load(file).rows if key.startswith("arms.deep")}
    of_grid = f"file {file}, grid of arms.deep"
    assert shown == {
        "arms.deep.class": ("multi_step", f"file {file}"),
        "arms.deep.facts.rounds": ("2", of_grid),
        "arms.deep.rounds": (2, of_grid),
        "arms.deep.rounds-4.class": ("multi_step", of_grid),
        "arms.deep.rounds-4.facts.rounds": ("4", of_grid),
        "arms.deep.rounds-4.rounds": (4, of_grid),
    }
    file.write_text("arms: {deep: {class: multi_step, grid: {rounds: 2}}}")
    with pytest.raises(
        ConfigError, match=f"must be a list of values, first the value of the arm with the plain name .file {file}."
    ) as caught:
        load(file)
    assert caught.value.field == "arms.deep.grid.rounds"


def test_a_grid_in_a_version():
    """A version may offer one; an arm of the configuration of the same name with other params is refused."""
    settings = Settings(arms={"fast": {}, "deep.rounds-4": {"rounds": 9}}, policy={"name": "uniform"})
    taken = {"arms": {"other": {"class": "multi_step", "grid": {"rounds": [2, 4]}}}}
    assert list(settings_with(settings, taken, label="v1").arms) == [*settings.arms, "other", "other.rounds-4"]
    refused = {"arms": {"deep": {"class": "multi_step", "grid": {"rounds": [2, 4]}}}}
    with pytest.raises(ConfigError) as caught:
        settings_with(settings, refused, label="v1")
    assert caught.value.field == "arms.deep.grid"

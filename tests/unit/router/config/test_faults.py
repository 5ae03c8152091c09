"""Every fault of a configuration is found at once."""

import pytest

from ragbandit.router.config.faults import faults_of
from ragbandit.shared.errors import ConfigError
from ragbandit.workers.verbs.validate import check_settings
from tests.support.additions import needs

GENERATOR = "generator: {name: openai, model: m, openai: {base_url: 'http://localhost:9/v1'}}\n"


@pytest.fixture
def fields(tmp_path):
    """A function: the settings with a fault in a file of this text, in order; each fault has a remedy."""

    def found(text, **environ):
        (tmp_path / "config.yaml").write_text(text)
        faults = faults_of(tmp_path / "config.yaml", check=check_settings, environ=environ)
        assert all(fault.remedy or fault.message for fault in faults)
        return [fault.field for fault in faults]

    return found


def test_faults_of_every_stage_are_found(fields):
    """Unknown keys, wrong types, URLs, arms, and names that nothing has are found in one run."""
    text = """
generatr: {name: openai}
server: {port: eighty, hosts: 3}
redis_url: http://x
arms:
  one: {class: single_stp}
  two: {class: http, url: "ftp://x"}
  three: {class: model, generator: larg}
  four: {class: multi_step, rounds: -1, beams: 3}
policy: {name: mbaa, params: {ridge: 1}, incumbent: eight}
"""
    of_settings = ["server.port", "server.hosts", "generatr", "redis_url"]
    of_arms = ["arms.three.generator", "arms.one.class", "arms.two.url", "arms.four.rounds", "arms.four.beams"]
    assert fields(text + GENERATOR) == [*of_settings, *of_arms, "policy.incumbent", "policy.name"]


@needs("cascade")
def test_what_follows_from_a_fault_is_no_fault(fields):
    """An arm, a generator and a section with a fault keep their names, so that settings that name them are right."""
    text = """
arms:
  small: {class: model, generator: other}
  both: {class: cascade, first: odd, then: small, empty: true}
  odd: {class: x}
generators: {other: {name: openai, model: m, openai: {base_url: "ftp:/x"}}}
policy: {incumbent: odd, holdback: {share: 0.01}}
"""
    found = fields(text + GENERATOR)
    assert found == ["policy.holdback.arm", "arms.odd.class", "generators.other.openai.base_url"]


def test_faults_of_the_environment_are_found_too(fields):
    """A variable of the environment and the file are checked together."""
    assert fields("reward: {wieght: 1}\n" + GENERATOR, RAGBANDIT_SERVER__PORT="x") == ["reward.wieght", "server.port"]


def test_a_file_that_cannot_be_read_is_one_fault(fields):
    """If the file is no YAML, this is the only fault; a right file has none."""
    assert fields("arms: {") == ["config"]
    assert fields(GENERATOR) == []


def test_a_fault_that_cannot_be_left_out_ends_the_search(tmp_path):
    """A check that always fails gives one fault, not an endless search."""

    def fail(_):
        raise ConfigError("never right", field="nowhere.at.all")

    environ = {"RAGBANDIT_DATA_DIR": str(tmp_path), "RAGBANDIT_GENERATOR__NAME": "scripted"}
    assert len(faults_of(None, check=fail, environ=environ)) == 1

"""A folder of Office files, from the files to an answer."""

import openpyxl
import pytest
import yaml

from tests.additions.office.files import said, shape, slides, word
from tests.support import command
from tests.support.arms.configured_arms import answered


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A configuration with an index over a letter, slides with notes, and a sheet."""
    folder = tmp_path_factory.mktemp("office")
    documents = folder / "documents"
    documents.mkdir()
    word(documents / "letter.docx", said("Our office is in Lisbon."), title="Letter")
    slides(documents / "talk.pptx", shape("Roadmap"), notes={1: shape("The launch is in October.")})
    book = openpyxl.Workbook()
    for row in (["product", "price"], ["Widget", 12.5], ["Gadget", 7]):
        book.active.append(row)
    book.save(documents / "prices.xlsx")
    file = folder / "config.yaml"
    generator = {"name": "scripted", "context_tokens": 8000, "script": {"": "So the answer is: it is there."}}
    tree = {"data_dir": str(folder / "data"), "encoder": {"model": "hashing"}, "generator": generator}
    file.write_text(yaml.safe_dump({**tree, "arms": {"single_step": {"passages": 1}}}))
    command.run("index", "build", "--corpus", documents, "--config", file, code=0)
    return file


@pytest.mark.parametrize(
    ("question", "url", "words"),
    [
        ("Where is our office?", "letter.docx", "in Lisbon"),
        ("When is the launch?", "talk.pptx", "in October"),
        ("What is the price of a gadget?", "prices.xlsx", "product: Gadget; price: 7"),
    ],
)
def test_an_arm_answers_from_it(config, question, url, words):
    """The passage of the answer is the one of the file, with its path as the address."""
    outcome = answered(config, question)
    assert (outcome.status, outcome.answer) == ("answered", "it is there")
    (source,) = outcome.sources
    assert source.url == url
    assert words in source.text

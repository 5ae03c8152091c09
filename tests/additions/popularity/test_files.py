"""Files of counts and of a threshold, as users name them."""

from pathlib import Path

import pytest

from ragbandit.additions.popularity.policy import Popularity
from ragbandit.shared.errors import ConfigError
from tests.support.user_files import refusal


def counts(folder, text='{"format": 1, "mentions": {"paris": 40}}'):
    file = folder / "counts.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_a_pipe_is_refused_where_a_file_is_read_again(pipe):
    """A pipe as a file of counts, or in the folder `trained`, is refused at once, with its field and a remedy."""
    folder = pipe.parent / "trained"
    folder.mkdir()
    (folder / "ragbandit.json").symlink_to(pipe)
    of_counts = refusal(lambda path: Popularity(counts=str(path)), pipe)
    of_threshold = refusal(lambda path: Popularity(counts=str(counts(path.parent)), trained=str(path)), folder)
    for error, field in ((of_counts, "policy.params.counts"), (of_threshold, "policy.params.trained")):
        assert "a pipe, not a file" in error.message
        assert (error.field, bool(error.remedy)) == (field, True)


def test_a_device_is_refused():
    """A device, which may have no end, is refused as a file of counts, with its field and a remedy."""
    error = refusal(lambda path: Popularity(counts=str(path)), Path("/dev/null"))
    assert "a device, not a file" in error.message
    assert (error.field, bool(error.remedy)) == ("policy.params.counts", True)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_marks_of_encodings(tmp_path, encoding):
    """Counts may be UTF-8, or have the byte order mark of UTF-8 or UTF-16."""
    path = counts(tmp_path, '{"format": 1, "mentions": {"münchen": 40}}'.encode(encoding))
    assert Popularity(counts=str(path)).popularity("Where is München?") == 40.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"format": 1, "mentions": {"paris": 40, "rome": 1, "paris": 2}}', "'paris' stands twice"),
        ('{"format": 1, "mentions": {}, "mentions": {"paris": 2}}', "'mentions' stands twice"),
        ('{"format": 1, "mentions": {"paris": NaN}}', r"mentions\.paris"),
        ('{"format": 1, "mentions": {"paris": 1e400}}', r"mentions\.paris"),
        (f'{{"format": 1, "mentions": {{"paris": 1{"0" * 400}}}}}', r"mentions\.paris"),
        ('{"format": 1, "mentions": {"paris": true}}', r"mentions\.paris"),
        ('{"format": 1, "mentions": {"paris": "40"}}', r"mentions\.paris"),
        ('{"format": 1, "mentions": ["paris"]}', "mentions"),
        ("[" * 100_000, "is not a file of counts"),
        ("", "is not a file of counts"),
        ("[]", "is not a file of counts"),
        (b'{"format": 1, "mentions": {"m\xfcnchen": 40}}', "not UTF-8"),
    ],
)
def test_odd_counts_are_refused(tmp_path, text, said):
    """A file of counts with a repeated key, another type or another encoding is refused, by name and with a remedy."""
    with pytest.raises(ConfigError, match=said) as caught:
        Popularity(counts=str(counts(tmp_path, text)))
    assert caught.value.field == "policy.params.counts"
    assert "ragbandit index counts" in caught.value.remedy

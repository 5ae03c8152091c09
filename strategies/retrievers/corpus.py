"""Passages before they are indexed: reading a corpus."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.files.json_lines import lines, parsed
from ragbandit.strategies.base import Passage


def read_corpus(path: Path | str, *, leave_out: Callable[[str, str], None] | None = None) -> Iterator[Passage]:
    """The passages of a corpus: a JSONL file, a .parquet file with the same columns, or a folder of documents.

    JSONL, plain or gzipped, is one object {"id", "title", "text", "url"} a line; other fields and blank lines are
    passed over, a missing title is "", a missing or empty url none. See `strategies.retrievers.documents` for folders,
    which are cut into passages; `leave_out` is theirs.
    Raises InvalidInput naming the line or row (from 1) and the field: broken JSON, a missing text, an id used twice.
    """
    source = Path(path)
    if source.is_dir():
        from ragbandit.strategies.retrievers.documents import read_folder  # its libraries are an extra of their own

        yield from read_folder(source) if leave_out is None else read_folder(source, leave_out=leave_out)
        return
    unit, rows = ("row", _parquet(source)) if source.suffix == ".parquet" else ("line", _json_lines(source))
    first_rows: dict[str, int] = {}
    for number, row in rows:
        passage = _read_row(row, place=f"{unit} {number}")
        first = first_rows.setdefault(passage.id, number)
        if first != number:
            raise InvalidInput(
                f"{unit} {number}: {passage.id!r} was used before, on {unit} {first}",
                field="id",
                remedy="give every passage its own",
            )
        yield passage


def _json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, raw in lines(path):
        try:
            row = parsed(raw)
        except InvalidInput as error:
            raise InvalidInput(f"line {number} {error.message}", field="corpus", remedy=error.remedy) from error
        yield number, row


def _parquet(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    import pyarrow.parquet as parquet  # most corpora are JSONL

    try:
        with parquet.ParquetFile(path) as file:
            columns = [name for name in ("id", "title", "text", "url") if name in file.schema_arrow.names]
            batches = file.iter_batches(columns=columns)
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows, start=1):
                # A null title is none, as where the column is missing.
                yield number, {key: value for key, value in row.items() if value is not None}
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise InvalidInput(f"{path} cannot be read: {error}", field="corpus", remedy="give a Parquet file") from error


def count_rows(path: Path | str) -> int | None:
    """Lines of a plain JSONL corpus, for a progress bar; None for another, and where reading it says what is wrong."""
    if Path(path).suffix in (".parquet", ".gz"):
        return None
    try:
        with Path(path).open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    except OSError:
        return None


def _read_row(row: Mapping[str, object], *, place: str) -> Passage:
    values: dict[str, str] = {}
    for name in ("id", "title", "text"):
        value = row.get(name, "" if name == "title" else None)
        if not isinstance(value, str) or (name != "title" and not value.strip()):
            fault = "is missing" if name not in row else f"is {value!r}"
            raise InvalidInput(f"{place}: {name!r} {fault}", field=name, remedy="give a string with text in it")
        values[name] = value
    url = row.get("url")
    if url is not None and not isinstance(url, str):
        raise InvalidInput(f"{place}: 'url' is {url!r}", field="url", remedy="give a string, or leave it out")
    return Passage(**values, url=url or None)


def model_text(text: str, *, title: str) -> str:
    """The text of a passage as models read it: its title on a line of its own, and its text."""
    return f"{title}\n{text}".strip()

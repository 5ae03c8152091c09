"""The contract of forms of logs: the check names what a form does wrong."""

import pytest

from ragbandit.testing.logs import check_log_form

TICKET = {"ticket_number": 7, "articles": [{"body": "Who wrote Dracula?"}, {"body": "Bram Stoker"}]}


class Good:
    """Reads tickets of a help desk."""

    keys = ("ticket_number",)

    @staticmethod
    def read(record):
        if "ticket_number" not in record:
            return None
        said = [part["body"] for part in record["articles"]]
        return [{"id": record["ticket_number"], "question": said[0], "answer": said[-1] if len(said) > 1 else None}]


class Spelled(Good):
    keys = "ticket_number"


class Nameless(Good):
    keys = ()


class Doubled(Good):
    keys = ("ticket_number", "Ticket Number")


class Elsewhere(Good):
    keys = ("ticket",)


class Greedy(Good):
    @staticmethod
    def read(record):
        return [{"question": record.get("question", "Who?")}]


class Silent(Good):
    @staticmethod
    def read(record):
        return [] if "ticket_number" in record else None


class Wordless(Good):
    @staticmethod
    def read(record):
        return [{"answer": "Bram Stoker"}] if "ticket_number" in record else None


class Blind(Good):
    @staticmethod
    def read(record):
        return None


class Fragile(Good):
    @staticmethod
    def read(record):
        return [{"question": record["subject"]}] if "ticket_number" in record else None


class ByValue(Good):
    """Decides by a value, so that a ticket without a number is read as a record of another tool."""

    @staticmethod
    def read(record):
        return Good.read(record) if record.get("ticket_number") else None


class Ending(Good):
    @staticmethod
    def read(record):
        if "ticket_number" in record and not isinstance(record["ticket_number"], int):
            raise SystemExit(2)
        return Good.read(record)


class Changing(Good):
    @staticmethod
    def read(record):
        questions = Good.read(record)
        record.pop("articles", None)
        return questions


class Counting(Good):
    count = 0

    @staticmethod
    def read(record):
        Counting.count += 1
        return [{"question": f"Who? {Counting.count}"}] if "ticket_number" in record else None


class Endless(Good):
    @staticmethod
    def read(record):
        return iter(lambda: {"question": "Who?"}, None) if "ticket_number" in record else None


class Plain(Good):
    @staticmethod
    def read(record):
        return ["Who wrote Dracula?"] if "ticket_number" in record else None


class Numbered(Good):
    @staticmethod
    def read(record):
        return [{"question": "Who?", 1: "Bram Stoker"}] if "ticket_number" in record else None


class Unwritable(Good):
    """Has a set among the values, which no JSON line can have."""

    @staticmethod
    def read(record):
        return [{"question": "Who?", "tags": {"books"}}] if "ticket_number" in record else None


@pytest.mark.parametrize("records", [[TICKET], [TICKET, {"ticket_number": 8, "articles": [{"body": "When?"}]}]])
def test_a_form_follows_the_contract(records):
    """A form that decides by names, and reads a record twice alike, follows the contract, whatever it raises."""
    check_log_form(Good, records=records)


@pytest.mark.parametrize(
    ("form", "fault"),
    [
        (Spelled, "keys is one text"),
        (Nameless, "keys has no names"),
        (Doubled, "spellings of one name"),
        (Elsewhere, "a record has none of the keys"),
        (Greedy, "did not return None for a record of another tool"),
        (Silent, "no record has a question"),
        (Wordless, "no question has a text"),
        (Blind, "returned None for a record of its own tool"),
        (Fragile, r"raised KeyError.*for a record of its own tool"),
        (ByValue, "returned None for a record with all its fields"),
        (Ending, r"raised SystemExit.*which ends the reading"),
        (Changing, "`read` changed its record"),
        (Counting, "for the same record"),
        (Endless, "more than 100,000 questions"),
        (Plain, "a question is no mapping"),
        (Numbered, "a field of a question has no name"),
        (Unwritable, "neither of JSON nor of Parquet"),
    ],
)
def test_a_form_that_breaks_the_contract_is_named(form, fault):
    """The check says what a form does wrong."""
    with pytest.raises(AssertionError, match=fault):
        check_log_form(form, records=[TICKET])


def test_records_that_no_file_can_have_are_named():
    """A table with two columns for one key cannot be read, whatever the form does."""
    with pytest.raises(AssertionError, match=r"cannot be read.*see keys"):
        check_log_form(Good, records=[{**TICKET, "Ticket Number": 7}])

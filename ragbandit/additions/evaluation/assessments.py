"""A comparison on the screen, in a page or as JSON."""

from pathlib import Path

from ragbandit.router.cli.console import console, print_json
from ragbandit.router.comparison.assessment import Assessment
from ragbandit.router.comparison.page import write_page
from ragbandit.router.comparison.terminal import print_assessment


def show_assessment(assessment: Assessment, *, reply: object, show_all: bool, report: Path | None) -> None:
    """Write the page if `report` is its path. Print the reply as JSON; if there is no reply, print the assessment."""
    if report is not None:
        write_page(report, assessment)
    if reply is None:
        print_assessment(assessment, console, show_all=show_all, page=report)
    else:
        print_json(reply)

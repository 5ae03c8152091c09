"""A comparison on the screen, in a page or as JSON."""

from pathlib import Path

from ragbandit.router.cli.console import console, print_json
from ragbandit.router.comparison.assessment import Assessment
from ragbandit.router.comparison.page import write_page
from ragbandit.router.comparison.terminal import print_assessment


def show_assessment(assessment: Assessment, *, reply: object, show_all: bool, report: Path | None) -> None:
    """Show a comparison on the screen or as JSON, and write it as a page.

    reply: object that is printed as JSON; None prints the assessment for people instead
    show_all: as in `print_assessment`, which prints it for people
    report: path of the page of HTML; None writes no page
    """
    if report is not None:
        write_page(report, assessment)
    if reply is None:
        print_assessment(assessment, console, show_all=show_all, page=report)
    else:
        print_json(reply)

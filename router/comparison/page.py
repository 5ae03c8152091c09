"""An assessment as one HTML page: a sentence and a number, pictures, and tables behind "show the numbers".

The page needs no script and loads no other file. The dashboard shows assessments by the same templates and style.
Importing this module does not import Jinja, which the extra `replay` installs.
"""

import importlib.util
import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ragbandit.router.comparison import words
from ragbandit.router.comparison.assessment import Assessment
from ragbandit.shared.errors import ConfigError, InvalidInput, missing_package
from ragbandit.shared.files import atomic_file
from ragbandit.shared.texts.formats import decimal, number, percent, printable

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from ragbandit.router.comparison.plots import ArmSigns

_CODE: Final = re.compile(r"`([^`\n]+)`")
#: folder of `page.css`
STATIC: Final = Path(__file__).parent / "static"


def template_values(assessment: Assessment, *, sign: "ArmSigns | None" = None) -> dict[str, Any]:
    """Values for the templates: the assessment, its pictures, its colour, and facts that its sentence does not contain.

    sign: colours and shapes of the arms, if the page shows more than this assessment; None to assign them here
    """
    from ragbandit.router.comparison import charts, plots

    sign = sign or plots.ArmSigns(assessment.arms)
    pictures = (
        charts.frontier(assessment.frontier, unit=assessment.cost_unit, signs=sign, note=assessment.frontier_note),
        *(charts.plane(drawn, signs=sign) for drawn in assessment.planes),
        charts.learning(assessment.curves),
        *map(charts.line_chart, assessment.charts),
    )
    return {
        "assessment": assessment,
        "colour": "" if assessment.verdict is None else words.COLOURS[assessment.verdict],
        "number_colour": words.COLOURS[assessment.verdict] if assessment.verdict in words.CLEAR else "",
        "state": words.unless_contained(assessment.state, sentence=assessment.headline or assessment.sentence),
        "missing": words.unless_contained(assessment.missing, sentence=assessment.headline or assessment.sentence),
        "forest": charts.forest(assessment.comparisons) if assessment.comparisons else None,
        "plots": [picture for picture in pictures if picture is not None],
        "sign": sign,
    }


def assessment_page(assessment: Assessment) -> str:
    """The page of an assessment. Raises ConfigError without Jinja."""
    values = {"title": assessment.title, "shown": template_values(assessment)}
    style = (STATIC / "page.css").read_text(encoding="utf-8")
    return str(page_environment().get_template("page.html").render(values, style=style))


def check_page(path: str | Path, *, field: str = "report") -> None:
    """Raise InvalidInput if a page cannot be written to the path, and ConfigError if Jinja is missing."""
    file = Path(path)
    if file.suffix.lower() != ".html" or file.is_dir() or not os.access(file.absolute().parent, os.W_OK):
        remedy = "name a .html file in an existing folder that you may write to"
        raise InvalidInput(f"{file} cannot be written", field=field, remedy=remedy)
    if importlib.util.find_spec("jinja2") is None:
        raise missing_package("jinja2", extra="replay", field=field)


def write_page(path: str | Path, assessment: Assessment, *, field: str = "report") -> None:
    """Write the page of an assessment. Raises like `check_page`, and then leaves the file unchanged."""
    check_page(path, field=field)
    text = assessment_page(assessment)
    try:
        with atomic_file(Path(path), durable=False) as beside:
            beside.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}", field=field, remedy="give another path") from error


@cache
def page_environment(*packages: str) -> "Environment":
    """The Jinja environment of pages, which escapes all values. packages: packages with further templates."""
    if importlib.util.find_spec("jinja2") is None:
        raise missing_package("jinja2", extra="replay")
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loaders = [PackageLoader(package) for package in (*packages, "ragbandit.router.comparison")]
    jinja = Environment(
        loader=ChoiceLoader(loaders), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    jinja.filters |= {function.__name__: function for function in (number, percent, decimal, coded, words.difference)}
    jinja.finalize = _plain
    return jinja


def coded(text: object) -> "Markup":
    """HTML of a sentence: its texts between backticks, commands and settings, are marked as code."""
    from markupsafe import Markup, escape

    parts = [escape(part) for part in _CODE.split(printable(str(text)))]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in enumerate(parts)
    )


def _plain(value: object) -> object:
    """Remove characters that hide text or change its direction. Markup of the templates stays unchanged."""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value

"""Settings of the site (Sphinx, MyST, furo): `make docs`. Its order of pages is that of docs/index.md."""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import ragbandit  # noqa: E402
from docs.generate.api import write_api  # noqa: E402
from docs.toctree import with_toctrees  # noqa: E402
from ragbandit.shared.additions import additions  # noqa: E402

project = "RagBandit"
author = "The RagBandit developers"
version = release = ragbandit.__version__

extensions = ["myst_parser"]
root_doc = "docs/index"
#: the source folder is the repository's, so that links to README, CHANGELOG and examples lead somewhere
include_patterns = ["*.md", "docs/*.md", "docs/**/*.md", "examples/**/*.md"]
exclude_patterns = [".venv", ".venv-clients", ".ragbandit", "build", "dist", "deploy", "tests", "**/node_modules"]
source_suffix = {".md": "markdown"}

myst_heading_anchors = 4
#: code without a language is text, not Python
highlight_language = "none"
suppress_warnings = ["myst.header"]  # a page may begin its sections at any level

html_theme = "furo"
html_title = f"RagBandit {release}"
html_copy_source = False
html_show_sphinx = False


def setup(app: Any) -> None:
    """Give the site what the repository has in another form: tables of contents and the HTTP interface."""

    def read(_app: Any, name: str, source: list[str]) -> None:
        if name == root_doc:
            pages = [page for addition in additions().values() for page in addition.pages]
            source[0] = with_toctrees(source[0], of_additions=pages).replace(
                "`build/site/docs/api.html`", '<a href="api.html">api.html</a>'
            )

    def finish(app: Any, error: Exception | None) -> None:
        if error is None and app.builder.format == "html":
            write_api(Path(app.outdir, "docs"))

    app.connect("env-get-outdated", lambda *_: [root_doc])  # its tables also depend on the additions
    app.connect("source-read", read)
    app.connect("build-finished", finish)

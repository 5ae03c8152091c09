"""`make docs`: write the reference pages, and the client for threads, which the others import."""

import runpy

from docs.generate import DOCS, pages

runpy.run_path(str(DOCS.parent / "hatch_build.py"))["write_client"]()
for file, text in pages().items():
    file.write_text(text, encoding="utf-8")
    print(f"wrote {file}")

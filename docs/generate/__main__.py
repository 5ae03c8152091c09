"""`make docs`: write the reference pages, and the client for threads, which the others import."""

import argparse
import runpy

from docs.generate import DOCS, pages

argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__).parse_args()
runpy.run_path(str(DOCS.parent / "hatch_build.py"))["write_client"]()
for file, text in pages().items():
    file.write_text(text, encoding="utf-8")
    print(f"wrote {file}")

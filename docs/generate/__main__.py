"""`make docs`: write the reference pages."""

from docs.generate import pages

for file, text in pages().items():
    file.write_text(text, encoding="utf-8")
    print(f"wrote {file}")

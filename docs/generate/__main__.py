"""`make docs`: write docs/configuration.md and docs/http.md."""

from docs.generate import pages

for file, text in pages().items():
    file.write_text(text, encoding="utf-8")
    print(f"wrote {file}")

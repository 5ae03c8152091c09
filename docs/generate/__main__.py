"""`make docs`: write the reference pages, and the client for threads, which the others import."""

from docs.generate import pages
from docs.generate.client import write_client

write_client()
for file, text in pages().items():
    file.write_text(text, encoding="utf-8")
    print(f"wrote {file}")

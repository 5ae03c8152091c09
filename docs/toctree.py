"""Table of contents of the site, made from the lists of docs/index.md: one place says where a page belongs.

Pages of additions that are in none of these lists have a list of their own.
"""

import re
from collections.abc import Mapping, Sequence


def sections(index: str) -> Mapping[str, list[str]]:
    """Heading -> the pages that its lists link to, as paths within docs/, in their order."""
    pages_by_heading: dict[str, list[str]] = {}
    for part in re.split(r"^## ", index, flags=re.M)[1:]:
        head, _, body = part.partition("\n")
        pages_by_heading[head.strip()] = re.findall(r"^- \[[^\]]+\]\(([^)#]+\.md)\)", body, flags=re.M)
    return pages_by_heading


def with_toctrees(index: str, *, of_additions: Sequence[str] = ()) -> str:
    """The page with a hidden table of contents for every section behind it. of_additions: files in docs/."""
    tables, listed = [], dict(sections(index))
    if further := sorted({*of_additions}.difference(*listed.values())):
        listed["Additions"] = further
    for head, pages in listed.items():
        names = "\n".join(f"/{_from_root(page)}" for page in pages)
        tables.append(f"```{{toctree}}\n:hidden:\n:caption: {head}\n\n{names}\n```")
    return index + "\n" + "\n\n".join(tables) + "\n"


def _from_root(page: str) -> str:
    """A path as the repository's root sees it, without its ending."""
    parts = ["docs"]
    for part in page.removesuffix(".md").split("/"):
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)

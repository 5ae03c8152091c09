"""The version and the CHANGELOG: what is published is written down under its number."""

import re


def fault_of(changelog: str, *, version: str) -> str | None:
    """Fault to fix before this version is published; None without one."""
    sections = re.split(r"^## ", changelog, flags=re.M)[1:]
    heads = [section.partition("\n")[0].strip() for section in sections]
    bodies = {head: section.partition("\n")[2].strip() for head, section in zip(heads, sections, strict=True)}
    if bodies.get("Unreleased"):
        return f"CHANGELOG.md has changes under Unreleased: name that heading as the version, and raise {version}"
    numbers = [head.partition(" ")[0] for head in heads if head != "Unreleased"]
    if not numbers or numbers[0] != version:
        return f"the newest heading of CHANGELOG.md is {numbers[:1] or 'none'}, and the version is {version}"
    if not bodies[next(head for head in heads if head.startswith(version))]:
        return f"CHANGELOG.md says nothing of {version}"
    return None

"""Applying a verdict: the policy learns the outcomes, and the best fixed arm becomes the incumbent and the arm of a
holdback, in the configuration file.

The snapshot of the new settings is made before the file is replaced, so that the next router has learned the ledger.
"""

import math
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from ragbandit.additions.advice.verdict import Advice
from ragbandit.additions.evaluation.outcomes import STORE
from ragbandit.additions.evaluation.warm import WarmRows, enter_rows
from ragbandit.router.comparison.holdback_size import Traffic, holdback_size
from ragbandit.router.config.loading import load, with_changes
from ragbandit.router.config.settings import Settings
from ragbandit.router.config.strict_yaml import parse_yaml, yaml_text
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.offline.estimation import Progress
from ragbandit.router.policies.settings_check import check_policy
from ragbandit.router.reporting.before_start import keep_comparisons
from ragbandit.router.reporting.reading import ReportScope, read_log
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.files import atomic_file, read_file
from ragbandit.shared.texts.formats import percent
from ragbandit.shared.types import ArmName, Json

#: minimum number of stored decisions for an estimate of traffic and of the share of rated answers
_MIN_ANSWERS: Final = 200


def apply_advice(
    advice: Advice,
    material: WarmRows,
    *,
    apply: bool,
    file: Path | None,
    ledger: Ledger,
    settings: Settings,
    encoder: Encoder,
    progress: Progress,
) -> dict[str, Any]:
    """Let the policy learn the rows, unless they come from the store. Returns facts about the changes.

    apply: whether to write the incumbent and the holdback into the configuration file, too.
    """
    details: dict[str, Any] = {}
    common: dict[str, Any] = {"ledger": ledger, "settings": settings, "encoder": encoder}
    if material.origin != STORE:
        details = {**asdict(enter_rows(material, **common, progress=progress)), "label": settings.policy.label}
        weight, label = settings.reward.weight, str(ledger.label)
        keep_comparisons(ledger.database, advice.comparisons, label=label, weight=weight, now=time.time())
    if apply:
        details["incumbent"] = set_incumbent(advice, file=file, **common)
    return details


def set_incumbent(
    advice: Advice, *, file: Path | None, settings: Settings, ledger: Ledger, encoder: Encoder
) -> tuple[str, ...]:
    """Write the best arm into the file as policy.incumbent and policy.holdback.arm. Returns the changes, or the line to
    add, in sentences.

    The share of a configured holdback stays; otherwise it is computed.

    settings: the settings in use. file: their file; None if they have no file. Raises StoreError and SnapshotError.
    """
    arm, configured = advice.best, settings.policy.holdback
    routed = 1.0 - advice.shares.get(ArmName(arm), 0.0)
    size = holdback_size(advice.comparisons[0], routed=routed, traffic=_traffic(ledger, arm=arm))
    setting: dict[str, float] = size.setting
    why: tuple[str, ...] = (f"the holdback: {size.sentence}",)
    if configured is not None:
        setting, why = configured.model_dump(exclude={"arm"}, exclude_none=True), ()
    policy: dict[str, Json] = {"incumbent": arm, "holdback": {"arm": arm, **setting}}
    line = f"policy: {_one_line_yaml(policy)}"

    def prepare(served: Settings) -> None:
        check_policy(served)
        make_learner(served, ledger).prepare(encoder_hash=encoder.hash)

    try:
        prepare(with_changes(settings, {"policy": policy}))  # also before a user adds the line by hand
        # `read_text` would change the line endings.
        changed = None if file is None else edit_policy(read_file(file).decode("utf-8"), policy)
        if file is None or changed is None:
            return (f"not set, since no safe change of {file or 'a file'} was found; add to it: {line}",)
        with atomic_file(file.resolve(), durable=True) as new_file:
            new_file.write_bytes(changed.encode("utf-8"))
            shutil.copymode(file, new_file)
            prepare(load(new_file).settings)  # environment variables may change what the file sets
    except ConfigError as error:
        return (f"not set: {error}",)
    except OSError as error:
        return (f"not set, since {file} cannot be written ({error.strerror}); add to it: {line}",)
    written = f"{arm}, with a holdback of {percent(setting['share'])}, in {file}"
    return (f"{written}; restart a running service to use them", *why)


def _traffic(ledger: Ledger, *, arm: str) -> Traffic:
    log = read_log(ledger.database, ReportScope(label=str(ledger.label), since=0.0, until=time.time()))
    learned = ledger.count_updates_of(ArmName(arm))
    if len(log.arm) < _MIN_ANSWERS:
        return Traffic(learned=learned)
    days = max(float(np.ptp(log.made_at)) / 86_400.0, 1.0)
    return Traffic(
        rated=float((~np.isnan(log.quality)).mean()), learned=learned, per_day=len(log.arm) * log.scale / days
    )


def edit_policy(text: str, policy: Mapping[str, Json]) -> str | None:
    """Set these values in the section `policy` of a YAML text, and change nothing else. Returns None if that fails."""
    try:
        tree = parse_yaml(text) or {}
        wanted = {"policy": {**(tree.get("policy") or {}), **policy}}
        root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
        changed = text
        if "policy" in tree:
            for start, end, new in sorted(_edits(text, root, wanted=wanted, present=tree), reverse=True):
                changed = changed[:start] + new + changed[end:]
        else:
            column = " " * (root.value[0][0].start_mark.column if tree else 0)
            lines = [
                f"{column}policy:",
                *(f"{column}  {_one_line_yaml({key: value})[1:-1]}" for key, value in policy.items()),
            ]
            changed = "\n".join([*filter(None, [text.rstrip()]), "", *lines, ""]).lstrip("\n")
        if "\r\n" in text:
            changed = changed.replace("\r\n", "\n").replace("\n", "\r\n")
        return changed if parse_yaml(changed) == {**tree, **wanted} else None
    except (ValueError, yaml.YAMLError, AttributeError, TypeError, IndexError):  # YAML that `_edits` cannot edit
        return None


def _edits(text: str, node: Any, *, wanted: Any, present: Any) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, new text) of the changes that give this mapping the wanted values. present: its values now."""
    entries = {key.value: (key, value) for key, value in node.value}
    changes = {name: value for name, value in wanted.items() if present.get(name) != value}
    for name in changes.keys() & entries.keys():
        (key, old), value = entries[name], changes.pop(name)
        start, end = old.start_mark.index, old.end_mark.index
        if start < key.end_mark.index:  # an alias: its node is where the anchor stands
            start, end = next(re.compile(r"\*[^\s,\]}]+").finditer(text, key.end_mark.index)).span()
        elif isinstance(old, yaml.MappingNode) and old.value:
            yield from _edits(text, old, wanted=value, present=present[name])
            continue
        yield start, end, ("" if text[start - 1].isspace() else " ") + _one_line_yaml(value)
    if changes and node.flow_style:
        start = text.index("{", node.start_mark.index) + 1
        yield start, start, f"{_one_line_yaml(changes)[1:-1]}, "
    elif changes:
        first = node.value[0][0].start_mark
        lines = [_one_line_yaml({name: value})[1:-1] for name, value in changes.items()]
        yield first.index, first.index, "".join(f"{line}\n{' ' * first.column}" for line in lines)


def _one_line_yaml(value: Json) -> str:
    """The value as YAML on one line."""
    text = yaml_text([value], default_flow_style=True, width=math.inf, allow_unicode=True)
    return text.strip()[1:-1]

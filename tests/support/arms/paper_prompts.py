"""What holds for each arm with the param `prompts`, in the core and in additions."""

from dataclasses import fields
from typing import get_args, get_type_hints

from ragbandit.strategies.prompting.prompts import PACKAGE, load_templates, template_names
from tests.support.arms.arm_runs import ARMS, ARMS_HERE


def arms_with_prompts(package):
    """The classes that have the param `prompts`, of the arms whose own templates are in this package."""
    kinds = [ARMS[name] for name in ARMS_HERE if ARMS[name].package == package]
    return [kind for kind in kinds if "prompts" in {part.name for part in fields(kind.kind)}]


def paper_names(package):
    """Names of the templates with the structure of a paper that an arm of the package may use."""
    return {name for name in template_names(package) if name.startswith("paper_") or "_news" in name}


def check_declared(declared, *, package):
    """Fields, passages and the number of demonstrations of the package's own templates of papers are as declared.

    declared: template -> (its fields besides passages, whether it shows passages, number of demonstrations).
    """
    names = paper_names(package) - (set() if package == PACKAGE else paper_names(PACKAGE))
    templates = load_templates(sorted(names), overrides={}, package=package)
    shapes = {
        name: (set(template.fields), template.takes_passages, len(template.demonstrations))
        for name, template in templates.items()
    }
    assert shapes == declared


def check_use(declared, *, package, ours):
    """Each arm uses templates of its paper, and together they use all that are declared.

    ours: arm -> templates of ours that it uses in a paper's place, because they have the same structure.
    """
    used = set()
    for arm in arms_with_prompts(package):
        for style in get_args(get_type_hints(arm.kind)["style"]):
            templates = arm(prompts="paper", style=style)._templates
            names = {use: template.name for use, template in templates.items()}
            allowed = paper_names(package) | ours.get(arm.arm, set())
            assert {names[use] for use in arm.paper_prompts} <= allowed, (arm, style)
            used |= set(names.values())
            assert not any(t.name.startswith("paper_") for t in arm(style=style)._templates.values())
    assert used >= set(declared)


def check_presets(package):
    """Presets of papers set `prompts: paper`, chat does not, and the user's own value has precedence."""
    for arm in arms_with_prompts(package):
        sources = {preset: arm(preset=preset).params.get("prompts", "ours") for preset in arm.presets}
        assert sources == {preset: "ours" if preset == "chat" else "paper" for preset in arm.presets}
        assert "prompts" not in arm(preset=next(iter(arm.presets)), prompts="ours").params

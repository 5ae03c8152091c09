from ragbandit.additions.skeleton.parts.settings import OwnSection


def test_settings() -> None:
    assert [*OwnSection().findings()] == []
    [finding] = OwnSection(owner="").findings()
    assert finding.severity == "warning"

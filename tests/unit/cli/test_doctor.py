from __future__ import annotations

import pytest

from softleak.cli.doctor import is_installed


@pytest.mark.parametrize(
    ("requirement", "there"),
    [
        ("rich>=13", True),
        ("typing_extensions >= 4.6", True),
        ("rich[jupyter]>=13; python_version > '3'", True),
        ("no-such-package-at-all==1", False),
    ],
)
def test_a_requirement_is_looked_up_by_its_name(requirement, there):
    assert is_installed(requirement) is there

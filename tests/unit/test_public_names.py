"""The public names are there, whichever way they are imported."""

from __future__ import annotations

from types import FunctionType

import pytest

import softleak as sl


@pytest.mark.parametrize("name", sl.__all__)
def test_every_public_name_can_be_had(name):
    assert getattr(sl, name) is not None


def test_audit_is_the_function():
    from softleak import audit

    assert isinstance(sl.audit, FunctionType)

    from softleak.audit.run import audit as same

    assert sl.audit is audit is same
    assert isinstance(sl.reconstruct, FunctionType)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = sl.nonsense

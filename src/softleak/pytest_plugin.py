"""The fixture ``softleak`` for pytest, with which a test holds that an update leaks nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import Tensor, nn

    from softleak.audit.leaks import Leak
    from softleak.audit.report import AuditReport
    from softleak.core.share import GradientShare


class LeakTester:
    """What the fixture ``softleak`` offers a test."""

    def assert_no_leak(
        self,
        model: nn.Module,
        update: GradientShare | Mapping[str, Tensor] | None = None,
        *,
        stop: Collection[Leak | str] = (),
        **known: Any,  # noqa: ANN401 - whatever ``softleak.audit`` takes
    ) -> AuditReport:
        """Return the report of an update, or fail the test if what must not leak did.

        What could not be attacked fails the test as well, since nothing is known of it.

        Args:
            model: the model at the weights that the update was computed at.
            update: the gradient by parameter name; or none, with ``after=`` as an audit takes it.
            stop: what must not leak, such as ``{"label"}``; every kind of leak if it is empty.
            known: the other arguments of ``softleak.audit``.
        """
        from softleak import GradientShare, audit
        from softleak.core.errors import LeakFound

        if update is not None and not isinstance(update, GradientShare):
            update = GradientShare(update)
        report = audit(model, update, **known)
        try:
            report.raise_for(*stop)
        except LeakFound as leak:
            pytest.fail(str(leak), pytrace=False)
        return report


@pytest.fixture(scope="session")
def softleak() -> LeakTester:
    """Return a tester of updates: ``softleak.assert_no_leak(model, update, stop={"label"})``."""
    return LeakTester()

"""This module holds ``reconstruct`` and ``reconstruct_many``: the public functions of gradient
matching.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn
from typing_extensions import Unpack

from softleak.errors import ModelError, OptionError
from softleak.head import Head
from softleak.input_spec import Layout
from softleak.matching.arguments import expect
from softleak.matching.method import Matching, MatchingSettings, usual_objective
from softleak.matching.reconstruction import Reconstruction
from softleak.matching.stopping import Watch
from softleak.results import BatchRecovery, Recovery
from softleak.share import GradientShare
from softleak.subject import Subject


def reconstruct(
    model: nn.Module,
    share: GradientShare,
    recovery: Recovery | BatchRecovery | None = None,
    *,
    head: str | Head | None = None,
    input_shape: tuple[int, ...] | None = None,
    watch: Watch | None = None,
    **settings: Unpack[MatchingSettings],
) -> Reconstruction:
    """Search for the input whose gradient comes nearest to a share (§4.3).

    With a ``BatchRecovery``, all inputs of the batch are searched together. Each has its own label
    and feature as targets; those of samples that were not found are free. The objective is then
    ``Cosine(beta=2.0)`` by default, since features count only with a positive ``beta``.

    Args:
        model: the classifier, in the mode the client used. Nothing of it is changed.
        share: what one client sent.
        recovery: what ``recover_label`` or ``recover_batch`` found; without it, ``label`` must name
            another source.
        head: the last linear layer or its name, if it is not to be found.
        input_shape: the shape of one input; by default the one that the share says.
        watch: a handle to end the search early or to show its progress.
        **settings: the fields of ``softleak.matching.Matching``, such as ``objective=sl.L2()``,
            ``restarts=2`` or ``seconds=60``.

    Returns:
        The input, the label it was found with, and how the search ended; of a batch, the inputs
        (B, …) and labels (B, C). A share that cannot be matched has a status that says why, and no
        input.

    Raises:
        ModelError: if the model cannot be matched at all.
        OptionError: if a setting is not of the kind it should be.
    """
    if not isinstance(share, GradientShare) and isinstance(share, (list, tuple)):
        raise OptionError(
            f"expected one GradientShare, got a {type(share).__name__} of {len(share)}; use "
            "reconstruct_many(model, shares, recoveries) for several shares"
        )
    expect(share, GradientShare, "a GradientShare")
    settings.setdefault("objective", usual_objective(recovery))
    (found,) = reconstruct_many(
        model, [share], [recovery], head=head, input_shape=input_shape, watch=watch, **settings
    )
    return found


def reconstruct_many(
    model: nn.Module,
    shares: Sequence[GradientShare],
    recoveries: Sequence[Recovery | BatchRecovery | None] | None = None,
    *,
    head: str | Head | None = None,
    input_shape: tuple[int, ...] | None = None,
    watch: Watch | None = None,
    **settings: Unpack[MatchingSettings],
) -> tuple[Reconstruction, ...]:
    """Search for the inputs behind many shares of one model, all in one batch.

    Args:
        model: the classifier, in the mode the clients used. Nothing of it is changed.
        shares: what the clients sent.
        recoveries: what ``recover_labels`` or ``recover_batch`` found, one for each share.
        head: the last linear layer or its name, if it is not to be found.
        input_shape: the shape of one input; by default the one that each share says.
        watch: a handle to end the search early or to show its progress.
        **settings: the fields of ``softleak.matching.Matching``. ``label`` and ``start`` are one
            for all shares or one for each.

    Returns:
        One reconstruction per share, in order. A share that cannot be matched has a status that
        says why, and does not affect the others.

    Raises:
        ModelError: if the model cannot be matched at all.
        OptionError: if a setting is not of the kind it should be.
    """
    if isinstance(shares, GradientShare):
        raise OptionError(
            "expected a sequence of shares, got one GradientShare; use "
            "reconstruct(model, share, recovery) for one share"
        )
    matching, shares = Matching(**settings), list(shares)
    for share in shares:
        expect(share, GradientShare, "a GradientShare")
    if not shares:
        return ()
    return matching(_subject(model, shares, head, input_shape), shares, recoveries, watch=watch)


def _subject(
    model: nn.Module,
    shares: Sequence[GradientShare],
    head: str | Head | None,
    input_shape: tuple[int, ...] | None,
) -> Subject:
    """Return the model made ready, its head verified on an input of a shape that somebody says."""
    said = {share.input_shape: None for share in shares if share.input_shape}  # in order
    shapes: Sequence[Layout | None] = [input_shape] if input_shape else [*said] or [None]
    for shape in shapes[:-1]:
        try:
            return replace(Subject.of(model, shape, head=head), said_shape=input_shape)
        except ModelError:  # one share may say a shape that the model does not take
            continue
    return replace(Subject.of(model, shapes[-1], head=head), said_shape=input_shape)

"""This module turns what an update file holds into a share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from softleak.errors import ShareError
from softleak.local_training import LocalTraining
from softleak.models.checkpoint import own_weights
from softleak.share import GradientShare
from softleak.tensor_files import Content
from softleak.vocabulary import Precision, UpdateKind


@dataclass(frozen=True)
class UpdateReading:
    """This says how update files are to be read.

    Attributes:
        kind: what the files hold; without it they are read as gradients of any sign and scale.
        lr: the learning rate of the step. Without it the scale of a difference of weights is
            unknown.
        client: the local training behind a difference of weights, in place of ``lr``.
        precision: the coarsest number format the client computed in, as with autocast.
    """

    kind: UpdateKind | None = None
    lr: float | None = None
    precision: Precision | None = None
    client: LocalTraining | None = None

    def share(self, held: Content, model: nn.Module) -> GradientShare:
        """Return the update that a file holds, for a model with the weights before the step."""
        return self._in_precision(self._share(held, model))

    def between(self, before: Content, after: Content, model: nn.Module) -> GradientShare:
        """Return the update between two checkpoints of a model."""
        old, new = (own_weights(held.tensors, model) for held in (before, after))
        return self._in_precision(self._step(old, new))

    def _step(self, old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> GradientShare:
        """Return the update between weights before and after a step; raises if they are equal."""
        share = GradientShare.from_update(old, new, lr=self.lr, client=self.client)
        if not any(share.largest(name) != 0 for name in share):
            raise ShareError(
                "expected weights after a step, got weights that equal those before it, so there "
                "is no update to audit; check which file is which"
            )
        return share

    def _in_precision(self, share: GradientShare) -> GradientShare:
        return share if self.precision is None else replace(share, precision=self.precision)

    def _share(self, held: Content, model: nn.Module) -> GradientShare:
        if self.kind is None:
            return GradientShare.of_file(held)
        if self.kind is UpdateKind.GRADIENT:
            share = GradientShare.of_file(held)
            return replace(share, scale=share.scale or "known")
        tensors = own_weights(held.tensors, model)
        start = model.state_dict()
        if self.kind is UpdateKind.DELTA and self.client is not None:
            # The weights before tell how a difference was rounded.
            ends = {n: start[n].double() + d for n, d in tensors.items() if n in start}
            share = GradientShare.from_update(start, ends, client=self.client)
            return replace(share, input_shape=held.input_shape)
        if self.kind is UpdateKind.DELTA:
            share = GradientShare.from_delta(tensors, lr=self.lr)
        else:
            share = self._step(start, tensors)
        return replace(share, input_shape=held.input_shape)

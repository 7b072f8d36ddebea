"""What a client sends under each candidate, before the noise.

Everything but the secret is taken for known: the model, the client, all other samples, and of a
label its input. Of a gradient the labels enter by the residuals alone: ``g_c = Jᵀ δ_c`` with ``J``
the Jacobian of the logits, so a backward pass for each candidate but the first is enough, and none
for labels beyond the number of logits. Of anything else the client is run once for each candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.bounds.gaussians import Mixture
from softleak.core.client import Client, as_batch
from softleak.core.errors import LabelError, ModelError, OptionError
from softleak.core.forward import gradients_of, run_batch, seeded
from softleak.core.input_spec import Inputs, assembled, pieces
from softleak.core.share import GradientShare
from softleak.defenses.defense import Defense, is_random

Secret = Literal["label", "input", "word"]
MOST_HELD = 1 << 29  # numbers of gradients held at a time
COLUMNS = 1 << 14  # of them in float64 at a time, which stay in the cache
MOST_LABELS = 4096  # combinations of zeros and ones that are listed unless candidates are given
SEED = 0  # what a model draws while it is run, as dropout does, is the same for every candidate


@dataclass(frozen=True, eq=False)
class MeanDifferences:
    """How the means of C candidates differ: ``μ_c − μ_0 = Σ_k A_ck v_k``, with few ``v_k``."""

    combinations: Tensor  # ``A`` (C, K)
    vector: Callable[[int], Tensor]  # returns ``v_k``, all parameters in one (P,)

    def gram(self) -> Tensor:
        """Return ``A V Aᵀ`` (C, C) with ``V`` the inner products of the vectors, in float64.

        As many vectors are held as fit; each later one is made again for every such block.
        """
        A = self.combinations.double().cpu()
        total = A.shape[1]
        V = torch.zeros(total, total, dtype=torch.double)
        start = 0
        while start < total:
            first = self.vector(start)
            end = min(start + max(MOST_HELD // max(first.numel(), 1), 1), total)
            held = first.new_empty(end - start, first.numel())
            held[0] = first
            for k in range(start + 1, end):
                held[k - start] = self.vector(k)
            V[start:end, start:end] = _products(held, held)
            for k in range(end, total):
                V[k, start:end] = V[start:end, k] = _products(held, self.vector(k)[None])[:, 0]
            start = end
        return A @ V @ A.T

    def mixture(self, prior: Tensor | Sequence[float] | None = None) -> Mixture:
        """Return the candidates as Gaussians, equally likely unless a prior (C,) is given."""
        count = len(self.combinations)
        given = torch.ones(count) if prior is None else torch.as_tensor(prior)
        weights = given.double().cpu()
        if weights.shape != (count,) or not bool((weights > 0).all()):
            raise OptionError(
                f"expected a positive prior for each of {count} candidates, got {prior!r}"
            )
        return Mixture(self.gram(), weights / weights.sum())


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a bᵀ`` of (A, P) and (B, P), summed in float64."""
    parts = zip(torch.split(a, COLUMNS, 1), torch.split(b, COLUMNS, 1), strict=True)
    found = sum(one.double() @ other.double().T for one, other in parts)
    return torch.as_tensor(found).cpu()


def flat(share: Mapping[str, Tensor], units: Mapping[str, float]) -> Tensor:
    """Return all tensors of a share as one vector (P,), in the units of each where it has one."""
    return torch.cat([g.flatten() / units.get(name, 1.0) for name, g in sorted(share.items())])


@dataclass(frozen=True, eq=False)
class Candidates:
    """The values that a secret of one client may have."""

    model: nn.Module  # the network, in the mode the client uses
    client: Client  # how a share is made
    x: Inputs  # the inputs (B, …) of the client, as the model takes them
    labels: Tensor  # their labels (B, C)
    values: Tensor  # the candidates: labels (N, C), inputs (N, …) or words (N,)
    what: Secret = "label"  # which of these they are
    sample: int = 0  # the sample of the batch that the secret belongs to
    place: int = 0  # the place of a word among the tokens of its sample
    defense: Defense | None = None  # what happens to a share before the noise, such as clipping
    units: Mapping[str, float] = field(default_factory=dict)  # each parameter's noise, if not one

    @classmethod
    def of(
        cls, model: nn.Module, x: Any, y: Any, client: Client, candidates: Any = None,  # noqa: ANN401
        **where: Any,  # noqa: ANN401
    ) -> Candidates:  # fmt: skip
        """Return the candidates of a client's secret; by default every class, or set of labels."""
        inputs, labels = as_batch(model, x, y, client.labelled)
        found = cls(model, client, inputs, labels, torch.empty(0), **where)
        if found.what not in ("label", "input", "word"):
            raise OptionError(f'what should be "label", "input" or "word", got {found.what!r}')
        if not 0 <= found.sample < len(labels):
            raise OptionError(f"sample should be below {len(labels)}, got {found.sample}")
        if found.defense is not None and is_random(found.defense):
            raise OptionError("the defence before the noise should draw nothing: give its noise")
        if found._draws():
            raise ModelError(
                "the model draws random numbers, so a bound holds for one draw: put it in eval mode"
            )
        values = found._listed() if candidates is None else found._given(candidates)
        if len(values) < 2:
            raise OptionError(f"expected at least two candidates, got {len(values)}")
        return replace(found, values=values)

    def _draws(self) -> bool:
        """Return whether two runs of the model on the same inputs differ."""
        found = []
        for seed in (SEED, SEED + 1):
            with seeded(seed, next(self.model.parameters())), torch.no_grad():
                found.append(run_batch(self.model, self.x)[0])
        return not torch.equal(*found)

    def _listed(self) -> Tensor:
        outputs = self.labels.shape[1]
        loss = self.client.labelled
        if self.what != "label" or loss.name not in ("ce", "bce"):
            raise OptionError(f"candidates of the {self.what} under {loss.name!r} have to be given")
        if loss.balanced:
            return torch.eye(outputs).to(self.labels)
        if 2**outputs > MOST_LABELS:
            raise OptionError(f"{outputs} labels have too many combinations: give candidates")
        return torch.tensor(list(product((0.0, 1.0), repeat=outputs))).to(self.labels)

    def _given(self, candidates: Any) -> Tensor:  # noqa: ANN401
        stack = not isinstance(candidates, Tensor) and isinstance(candidates[0], Tensor)
        values = torch.stack(list(candidates)) if stack else torch.as_tensor(candidates)
        if self.what != "label":
            return values
        if values.ndim == 1 and self.client.labelled.balanced:
            values = F.one_hot(values.long(), self.labels.shape[1])
        values = values.reshape(len(values), -1).to(self.labels)
        if values.shape[1] != self.labels.shape[1]:
            raise LabelError(f"expected labels of {self.labels.shape[1]} entries, got {values}")
        for label in values:
            self.client.labelled.check(label)
        return values

    def share(self, index: int) -> GradientShare:
        """Return what the client sends under one candidate, before the noise."""
        with seeded(SEED, next(self.model.parameters())):
            sent = self.client.share(self.model, *self._data(index))
        return sent if self.defense is None else self.defense(sent)

    def _data(self, index: int) -> tuple[Inputs, Tensor]:
        if self.what == "label":
            labels = self.labels.clone()
            labels[self.sample] = self.values[index]
            return self.x, labels
        inputs = {keyword: tensor.clone() for keyword, tensor in pieces(self.x)}
        keyword = next((k for k, t in inputs.items() if not t.is_floating_point()), None)
        if self.what == "input":
            first = next(iter(inputs.values()))
            first[self.sample] = self.values[index].to(first).reshape(first[self.sample].shape)
        elif keyword is None:
            raise OptionError("expected an input of token ids, among which words have a place")
        else:
            inputs[keyword][self.sample, self.place] = self.values[index]
        return assembled(inputs), self.labels

    def means(self) -> MeanDifferences:
        """Return the means of what is sent, in as few backward passes or runs as they take."""
        if self.what == "label" and not self.client.trains and self.defense is None:
            return self._by_residuals()
        first = flat(self.share(0), self.units)
        combinations = torch.eye(len(self.values))[:, 1:]
        return MeanDifferences(combinations, lambda k: flat(self.share(k + 1), self.units) - first)

    def _by_residuals(self) -> MeanDifferences:
        """Return the means of gradients under each label: ``Jᵀ (δ_c − δ_0)``."""
        trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        with seeded(SEED, next(self.model.parameters())), torch.enable_grad():
            logits, _ = run_batch(self.model, self.x)
            residuals = torch.stack([self._residual(logits, n) for n in range(len(self.values))])
            directions = residuals - residuals[0]
            logits, directions = self._own(logits, directions)
        several = directions.flatten(1)
        few = len(several) <= several.shape[1]
        basis = several[1:] if few else torch.eye(several.shape[1]).to(several)
        combinations = torch.eye(len(several))[:, 1:] if few else several

        def vector(k: int) -> Tensor:
            along = (logits * basis[k].view_as(logits)).sum()
            found = torch.autograd.grad(
                along, list(trained.values()), retain_graph=True, allow_unused=True
            )
            named = zip(trained, found, strict=True)
            return flat({name: g for name, g in named if g is not None}, self.units)

        return MeanDifferences(combinations, vector)

    def _residual(self, logits: Tensor, index: int) -> Tensor:
        at = logits.detach().requires_grad_()
        (found,) = gradients_of(self.client.minimised(at, self._data(index)[1]), [at])
        return torch.zeros_like(at) if found is None else found

    def _own(self, logits: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and directions of the sample alone, where the others do not touch it."""
        others = [i for i in range(len(logits)) if i != self.sample]
        if not others or bool(directions[:, others].any()):
            return logits, directions
        place = slice(self.sample, self.sample + 1)
        try:
            with seeded(SEED, logits):
                own = assembled({k: t[place] for k, t in pieces(self.x)})
                alone, _ = run_batch(self.model, own)
        except ModelError:  # BatchNorm in train mode takes no batch of one
            return logits, directions
        near = 64 * torch.finfo(logits.dtype).eps * (1 + logits.abs().max())
        if bool(((alone - logits[place]).abs() <= near).all()):
            return alone, directions[:, place]
        return logits, directions

"""Solve for the words of a text with all numbers of an update at once.

Adapters, and models whose table of words is frozen, send nothing that names a word, and the span of
the first layer tells as many tokens as it has dimensions. All gradients together hold far more
numbers than a text. The unknowns are the vectors that the table gives for its tokens; they begin at
the table's mean, Gauss–Newton walks on, and each step reads the words that are nearest. A text is
found when the gradient of its words is the update.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from softleak.core.errors import ModelError
from softleak.core.forward import logits_of, run_batch, watched, watched_tables
from softleak.core.input_spec import InputSpec, pieces
from softleak.core.results import Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.inversion.results import Certainty, NoWay, Place, Text
from softleak.inversion.texts.span import FirstLayer, filled, first_layer
from softleak.matching.gauss_newton.descent import (
    Advance,
    DampedDescent,
    Damping,
    NormalEquations,
    NormalSteps,
    Taken,
    root_mean_square,
)
from softleak.matching.gauss_newton.equations import ShareEquations
from softleak.matching.gauss_newton.metric import Metric
from softleak.matching.gauss_newton.products import NewtonModel
from softleak.matching.problems import DifferentiableModel
from softleak.matching.reconstruction import MatchProgress, Stopping, Watch
from softleak.resimulation import exact_copy, relative_misfit, resimulate_texts


@dataclass(frozen=True, eq=False)
class WordTable:
    """The vectors of all words, and how they are spread."""

    name: str  # the layer that looks them up
    words: Tensor  # (V, m)
    places: Tensor | None  # what is added at each place (L, m), if it is learned and looked up
    least: float = 1e-6  # the least variance of a direction, relative to the largest

    @cached_property
    def mean(self) -> Tensor:
        return self.words.mean(0)

    @cached_property
    def spread(self) -> Tensor:
        """Return ``S`` (m, m) with ``S Sᵀ`` the covariance of the words."""
        values, vectors = torch.linalg.eigh(torch.cov(self.words.T))
        root: Tensor = vectors * values.clamp_min(float(values[-1]) * self.least).sqrt()
        return root

    @cached_property
    def packed_words(self) -> Tensor:
        return self.packed(self.words)

    def packed(self, vectors: Tensor) -> Tensor:
        """Return vectors (n, m) as unknowns, in which the covariance of words is one."""
        found: Tensor = torch.linalg.solve(self.spread, (vectors - self.mean).T).T
        return found


@dataclass(frozen=True, eq=False)
class TextFunction:
    """Map the vectors of a text's tokens, and its soft label, to everything that is sent of them.

    The unknowns are L vectors, as a ``WordTable`` packs them, and then the label (C,).
    """

    model: DifferentiableModel  # the private copy of the network, in the dtype of the arithmetic
    names: tuple[str, ...]  # the parameters whose gradients are rows
    table: WordTable
    inputs: dict[str, Tensor]  # a batch of one text of the same length, whose words do not matter

    @property
    def like(self) -> Tensor:
        return self.model.like

    @property
    def length(self) -> int:
        return next(iter(self.inputs.values())).shape[1]

    @property
    def entries(self) -> int:
        """Return how many of the unknowns are entries of vectors."""
        return self.length * self.table.words.shape[1]

    @property
    def unknowns(self) -> int:
        return self.entries + self.model.head.classes

    @property
    def sizes(self) -> dict[str, int]:
        own = {name: self.model.parameters[name].numel() for name in self.names}
        return own | {"(label)": self.model.head.classes, "(sum)": 1}

    @cached_property
    def activations(self) -> int:
        count = 0

        def add(_: str, __: object, output: object) -> None:
            nonlocal count
            count += output.numel() if isinstance(output, Tensor) else 0

        every = dict(self.model.model.named_modules())
        with watched({n: m for n, m in every.items() if n}, after=add), torch.no_grad():
            self.model.model(**self.inputs)
        return count

    def vectors(self, z: Tensor) -> Tensor:
        """Return the vectors (L, m) of the tokens."""
        packed = z[: self.entries].view(self.length, -1)
        return self.table.mean.to(z) + packed @ self.table.spread.to(z).T

    def label(self, z: Tensor) -> Tensor:
        return z[self.entries :]

    def logits(self, parameters: dict[str, Tensor], vectors: Tensor) -> Tensor:
        """Return the logits (1, C) where the table looks up these vectors (L, m)."""
        table = {"": self.model.model.get_submodule(self.table.name)}
        held = {**self.model.parameters, **parameters}
        with watched(table, after=lambda *_: vectors[None]):
            found = logits_of(functional_call(self.model.model, held, (), self.inputs))
        if found is None:
            raise ModelError("expected logits, the output is not a tensor")
        return found

    def groups(self, z: Tensor) -> list[Tensor]:
        """Return the gradients, the label and its sum."""
        y, vectors = self.label(z), self.vectors(z)

        def loss(values: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            log_p = torch.log_softmax(self.logits(values, vectors), -1)
            return -(log_p * y).sum(-1).mean(), {}

        own = {name: self.model.parameters[name] for name in self.names}
        found, _ = self.model.differentiated(loss, own)
        return [*(found[name] for name in self.names), y, y[None].sum(1)]

    def rows(self, z: Tensor) -> Tensor:
        """Return every row (R,) at the unknowns ``z``."""
        return torch.cat([part.reshape(-1) for part in self.groups(z)])


def text_model(
    subject: Subject, layer: FirstLayer, names: tuple[str, ...], length: int, memory: int
) -> NewtonModel[TextFunction]:
    """Return what a client sends of a text of a length, in both precisions."""
    spec = layer.spec.of_length(length)
    inputs = dict(pieces(filled(spec, torch.full((1, length), _plain_token(subject, spec)))))
    table = _table(subject, spec, inputs)

    def copied(dtype: torch.dtype) -> TextFunction:
        return TextFunction(
            DifferentiableModel.of(subject.model, subject.head, dtype), names, table, inputs
        )

    exact, quick = copied(torch.float64), copied(torch.float32)
    return NewtonModel(exact, quick, quick, memory)


def _plain_token(subject: Subject, spec: InputSpec) -> int:
    """Return a token that a model does not take for padding."""
    taken = {getattr(getattr(subject.model, "config", None), "pad_token_id", None)}
    taken |= {m.padding_idx for m in subject.model.modules() if isinstance(m, nn.Embedding)}
    return next(token for token in range(1, spec.tokens.below or 2) if token not in taken)


def _table(subject: Subject, spec: InputSpec, inputs: dict[str, Tensor]) -> WordTable:
    """Return the table of words, and what a table of places adds to them."""
    model, ids = subject.model, inputs[spec.tokens.keyword]
    with torch.no_grad(), watched_tables(model) as lookups:
        run_batch(model, inputs, (2, 3))
    name = next(n for n, rows, seen in lookups if rows == spec.tokens.below and seen.numel() > 1)
    held = {n: m for n, m in model.named_modules() if isinstance(m, nn.Embedding)}
    words = held[name].weight.detach().double()
    places = None
    for other, _, seen in lookups:
        rising = seen.flatten() - seen.flatten()[0]
        if other != name and rising.tolist() == list(range(ids.shape[1])):
            places = held[other].weight.detach().double()[seen.flatten()]
    return WordTable(name, words, places)


# What reading asks for.
EXPLAINS = 100.0  # the misfit of whole words, in standard errors, that is looked at further


@dataclass(frozen=True, eq=False)
class Decoding:
    """Round vectors to words one after the other, the surest first.

    What is known of the vectors is a normal distribution, and what is told of one by its word moves
    all others. A model that reads in both directions does not see the order of its vectors, so that
    each of them may be any word at any place.
    """

    z: Tensor  # (L, k) the means
    P: Tensor  # (L, k, L, k) the covariance
    words: Tensor  # (V, k) the packed words
    offsets: Tensor  # (L, k) what a place adds to them
    ordered: bool  # whether every vector stands at its own place

    def run(self) -> Tensor:
        """Return the words by place (L,)."""
        L, k = self.z.shape
        open_, free = list(range(L)), list(range(L))
        ids, z, P = torch.zeros(L, dtype=torch.long), self.z.clone(), self.P
        while open_:
            best = (-math.inf, 0, 0)  # the margin, the number among the open ones and the choice
            for number, slot in enumerate(open_):
                factor = torch.linalg.cholesky(P[number, :, number])
                far = self._far(slot, z[slot], factor, [slot] if self.ordered else free)
                two = far.flatten().topk(2, largest=False)
                margin = float(two.values[1] - two.values[0])
                best = max(best, (margin, number, int(two.indices[0])))
            _, number, choice = best
            slot, (word, place) = open_.pop(number), divmod(choice, L)
            free.remove(place)
            ids[place] = word
            rest = [i for i in range(len(P)) if i != number]
            n = len(rest) * k
            across = P[number][:, rest].reshape(k, n)  # its covariance with the others
            gain = torch.linalg.solve(P[number, :, number], across)
            wanted = self.words[word] + self.offsets[place] - self.offsets[slot]
            z[open_] += ((wanted - z[slot]) @ gain).view(len(rest), k)
            left = P[rest][:, :, rest].reshape(n, n) - across.T @ gain
            P = left.view(len(rest), k, len(rest), k)
        return ids

    def _far(self, slot: int, mean: Tensor, factor: Tensor, places: list[int]) -> Tensor:
        """Return the squared Mahalanobis distance (V, L) of each word at each place from a slot."""
        shift = (self.offsets - self.offsets[slot] - mean).T
        A = torch.linalg.solve_triangular(factor, self.words.T, upper=False)
        B = torch.linalg.solve_triangular(factor, shift, upper=False)
        taken = torch.full((len(self.z),), math.inf, dtype=torch.double)
        taken[places] = 0.0
        far: Tensor = A.square().sum(0)[:, None] + B.square().sum(0) + 2 * A.T @ B + taken
        return far


@dataclass(eq=False, kw_only=True)
class ReadingSteps(Watch):
    """Steps that read words after each, and end the walk when these are the text."""

    steps: NormalSteps
    function: TextFunction  # in float64
    ordered: bool  # whether every vector stands at its own place
    share: GradientShare
    text: Tensor | None = None  # (L,), which ends the walk
    label: Tensor | None = None  # (C,), with which it explains the share
    seen: set[tuple[int, ...]] = field(default_factory=set)  # the texts that were tried

    @property
    def equations(self) -> ShareEquations[TextFunction]:
        return self.steps.equations

    def tell(self, progress: MatchProgress) -> None:
        """Nobody is told."""

    def advance(
        self, descent: DampedDescent, here: Taken, dtype: torch.dtype, stopping: Stopping
    ) -> Advance:
        """Take a step, and read the words where it leads."""
        found = self.steps.advance(descent, here, dtype, stopping)
        if found.path and found.normal is not None:
            self.read(found.path[-1], found.normal)
        return found

    def finished(self, descent: DampedDescent, here: Taken, last: Advance) -> Taken | None:
        """There is no last step: words end the walk."""
        return None

    def read(self, here: Taken, normal: NormalEquations) -> None:
        """Read the words at an iterate; they are the text if they explain the share."""
        ids = self.decoding(here, normal).run()
        if (key := tuple(ids.tolist())) in self.seen:
            return
        self.seen.add(key)
        label = self.fitted(ids, self.function.label(here.z))
        packed = self.function.table.packed(self.function.table.words[ids]).flatten()
        if root_mean_square(self.equations.residual(torch.cat([packed, label]))) <= EXPLAINS:
            self.text, self.label, self.interrupted = ids, label, True

    def fitted(self, ids: Tensor, label: Tensor) -> Tensor:
        """Return the label (C,) that the head's gradient ``(p − y) xᵀ`` shows for some words."""
        function, name = self.function, self.function.model.head.weight_name
        if name not in function.names:
            return label
        packed = function.table.packed(function.table.words[ids]).flatten()
        flat = torch.full_like(label, 1 / len(label))
        z = torch.cat([packed, flat])
        with torch.no_grad():
            p = function.logits({}, function.vectors(z))[0].softmax(-1)
            own = function.groups(z)[function.names.index(name)]
        x = (p - flat) @ own / (p - flat).square().sum()
        return p - self.share[name].double() @ x / x.square().sum()

    def decoding(self, here: Taken, normal: NormalEquations) -> Decoding:
        """Return what the equations at an iterate, and the spread of words, tell of the vectors."""
        function, n = self.function, self.function.entries
        H = normal.matrix / max(float(here.r.square().mean()), 1.0)
        ridge, factor, failed = 1.0, H, torch.ones(())
        while int(failed):
            damped = H + ridge * torch.eye(len(H), dtype=torch.double)
            factor, failed = torch.linalg.cholesky_ex(damped)
            ridge *= 4.0  # the matrix of a Jacobian in float32 has eigenvalues below zero
        P = torch.cholesky_inverse(factor)[:n, :n]
        L, k, table = function.length, n // function.length, function.table
        offsets = torch.zeros(L, k, dtype=torch.double)
        if table.places is not None:
            offsets = table.packed(table.places + table.mean)
        P, z = P.reshape(L, k, L, k), here.z[:n].view(L, k)
        return Decoding(z, P, table.packed_words, offsets, self.ordered)


STARTS = (0.0, 0.3, 0.3, 1.0)  # how far from the mean each walk begins, in spreads of the words


@dataclass(frozen=True)
class TextSolver:
    """Solve for the words of one text by Gauss–Newton, from several starts."""

    descent: DampedDescent = field(
        default_factory=lambda: DampedDescent(
            steps=60, damping=Damping(first=0.1, raised=4.0, lowered=0.2)
        )
    )
    memory: int = 2 << 30  # the bytes that the Jacobian and its products may take
    seconds: float | None = None  # the time limit of all starts together

    def texts(
        self, subject: Subject, layer: FirstLayer, share: GradientShare, recovery: Recovery,
        length: int,
    ) -> Iterator[tuple[Tensor, Tensor] | None]:  # fmt: skip
        """Yield the text (L,) and label (C,) that each start leads to, or None where it is none."""
        names = tuple(name for name in subject.parameters if name in share)
        model = text_model(subject, layer, names, length, self.memory)
        steps = self._steps(model, share, recovery)
        stopping = Stopping(self.descent.steps, self.seconds)
        generator = torch.Generator().manual_seed(0)
        label = steps.equations.parted(steps.equations.target)["(label)"]
        for far in STARTS:
            noise = torch.randn(model.exact.entries, generator=generator, dtype=torch.double)
            reader = ReadingSteps(
                steps=steps,
                function=model.exact,
                share=share,
                ordered=model.exact.table.places is None,
            )
            stopping.watch = reader
            # Fused attention kernels cannot be differentiated twice; the plain one can.
            with sdpa_kernel(SDPBackend.MATH):
                self.descent(reader, torch.cat([far * noise, label]), stopping)
            text, shown = reader.text, reader.label
            yield None if text is None or shown is None else (text, shown)
            reader.interrupted = False
            if stopping.over:
                return

    def _steps(
        self, model: NewtonModel[TextFunction], share: GradientShare, recovery: Recovery
    ) -> NormalSteps:
        exact, least = model.exact, torch.finfo(torch.float32).eps
        classes = exact.model.head.classes
        known = recovery.label is not None and recovery.status is Status.UNIQUE
        label = torch.full((classes,), 1 / classes) if recovery.label is None else recovery.label
        error = max(recovery.error, least) if known else math.inf
        told = (label.double(), error), (torch.ones(1, dtype=torch.double), least)
        equations = ShareEquations.of(exact, share, told, model.client.like.dtype)
        width = exact.table.words.shape[1]
        metric = Metric(
            exact.length, torch.ones(1, width, dtype=torch.double),
            torch.eye(1, dtype=torch.double), torch.eye(width, dtype=torch.double),
        )  # fmt: skip
        return NormalSteps(model, equations, metric)


FROM_ALL = "all gradients together"
NEAR_WORDS = 4  # the nearest words of each place that are tried in its stead
WORSE = 10.0  # by what factor every other text has to fit worse for one to be certain
MISFIT_ROUNDING = 1e-6  # below it two texts are told apart by nothing
FIRST_LENGTH, LAST_LENGTH = 2, 64  # of texts whose length nobody tells


def solve_text(
    subject: Subject, share: GradientShare, recovery: Recovery, seconds: float
) -> Text | NoWay:
    """Return the text of one sample behind a share that names no word by itself.

    A text is certain only if its gradient is the share to within rounding in every layer, no
    neighbour of a word and no exchange of two words comes near, and a second search finds no other.
    """
    layer = subject.once(first_layer)
    if layer is None:
        return NoWay("the layer that reads the embedded tokens first was not found")
    if subject.head.each_token or subject.head.weight_name not in share:
        return NoWay("the share does not tell the label of one text, which the search needs")
    if recovery.scale != 1.0:
        share = share.scaled(1 / recovery.scale)
    told = share.input_shape.length if isinstance(share.input_shape, InputSpec) else None
    began = time.perf_counter()
    for length in (told,) if told else range(FIRST_LENGTH, LAST_LENGTH):
        left = seconds - (time.perf_counter() - began)
        if left <= 0:
            break
        search = TextSolver(seconds=left).texts(subject, layer, share, recovery, length)
        found = next((one for one in search if one is not None), None)
        if found is not None:
            second = next(search, None)
            return _judged(subject, share, found, second, told is not None)
    lengths = f"of {told} tokens" if told else f"of {FIRST_LENGTH} tokens and more"
    return NoWay(f"no text {lengths} was found within {seconds:.0f} s whose gradient is the update")


def _judged(
    subject: Subject, share: GradientShare, found: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor] | None, told: bool,
) -> Text:  # fmt: skip
    """Return a text with what is certain of it."""
    ids, label = found
    spec = subject.input_shape
    assert isinstance(spec, InputSpec)
    fit = resimulate_texts(subject, share, filled(spec, ids[None]), label[None])
    exact = subject.once(exact_copy)

    def misfit(text: Tensor) -> float:
        return relative_misfit(exact, share, filled(spec, text), label)

    line = WORSE * max(misfit(ids), MISFIT_ROUNDING)
    doubtful: set[int] = set()
    for rival in _rivals(subject, ids):
        if misfit(rival) <= line:
            doubtful |= set((rival != ids).nonzero()[:, 0].tolist())
    other = second is not None and not torch.equal(second[0], ids)
    speaks = all(one.speaks for one in fit.layers)
    noisy = any(share.noise(name) > 0 for name in share)
    sure = fit.agree and speaks and told and not noisy and not other
    best = Certainty.CERTAIN if sure else Certainty.LIKELY if fit.agree else Certainty.GUESS
    places = tuple(
        Place(i, token, Certainty.GUESS if i in doubtful else best)
        for i, token in enumerate(ids.tolist())
    )
    words = {p.token for p in places if p.certainty is Certainty.CERTAIN and p.token is not None}
    worst = 0.0 if fit.worst is None else fit.worst.misfit
    message = (
        f"the vectors of all {len(ids)} words were solved for with {FROM_ALL}; the gradient of the "
        f"text differs from the update by at most {worst:.1f} times its rounding"
    )
    if other:
        message += "; a second search found another text that explains the update too"
    if not told:
        message += "; its length was not stated, and shorter ones did not explain the update"
    return Text(places, tuple(sorted(words)), fit.agree, FROM_ALL, message)


def _rivals(subject: Subject, ids: Tensor) -> Iterator[Tensor]:
    """Yield texts (L,) of which a word is one of its neighbours, or two are exchanged."""
    words = _words(subject)
    for place, token in enumerate(ids.tolist()):
        far = (words - words[token]).norm(dim=1)
        far[token] = math.inf
        for near in far.topk(min(NEAR_WORDS, len(words) - 1), largest=False).indices.tolist():
            yield torch.cat([ids[:place], ids.new_tensor([near]), ids[place + 1 :]])
    for one, two in combinations(range(len(ids)), 2):
        if ids[one] != ids[two]:
            changed = ids.clone()
            changed[one], changed[two] = ids[two], ids[one]
            yield changed


def _words(subject: Subject) -> Tensor:
    """Return the table (V, m) that token ids point into."""
    spec = subject.input_shape
    assert isinstance(spec, InputSpec)
    ids = torch.full((1, spec.length or 2), _plain_token(subject, spec))
    inputs = dict(pieces(filled(spec, ids)))
    return _table(subject, spec, inputs).words

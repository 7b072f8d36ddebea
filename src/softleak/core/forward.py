"""A stranger's model, watched and run without changing it, and which inputs it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from softleak.core.errors import ModelError, in_a_line
from softleak.core.input_spec import (
    POSITIONAL,
    Inputs,
    InputSpec,
    Layout,
    Shape,
    assembled,
    layout_of,
    pieces,
    random_tokens,
)

Before = Callable[[str, tuple[Any, ...]], Any]  # name and arguments; None, or other arguments
After = Callable[[str, tuple[Any, ...], Any], Any]  # and output; None, or another output


@contextmanager
def watched(
    modules: Mapping[str, nn.Module], *, before: Before | None = None, after: After | None = None
) -> Iterator[None]:
    """Call ``before`` and ``after`` whenever one of the modules runs, until the block ends."""
    with ExitStack() as stack:
        for name, module in modules.items():
            if before is not None:
                handle = module.register_forward_pre_hook(
                    lambda _, given, name=name: before(name, given)
                )
                stack.callback(handle.remove)
            if after is not None:
                handle = module.register_forward_hook(
                    lambda _, given, output, name=name: after(name, given, output)
                )
                stack.callback(handle.remove)
        yield


@contextmanager
def recorded_inputs(model: nn.Module, *names: str) -> Iterator[dict[str, list[Tensor]]]:
    """Yield the first argument of every run of each named layer, in the order of the runs."""
    seen: dict[str, list[Tensor]] = {name: [] for name in names}
    modules = {name: model.get_submodule(name) for name in names}
    with watched(modules, before=lambda name, given: seen[name].append(given[0])):
        yield seen


@contextmanager
def seeded(seed: int, like: Tensor) -> Iterator[None]:
    """Let a model draw from this seed on the device of ``like``, and from where it was afterwards.

    ``torch.manual_seed`` would do it too, but it keeps a stack trace for each kind of accelerator
    that is absent, which takes longer than to run a small model.
    """
    with torch.random.fork_rng([like.device] if like.is_cuda else []):
        torch.default_generator.manual_seed(seed)
        if like.is_cuda:
            with torch.cuda.device(like.device):
                torch.cuda.manual_seed(seed)
        yield


CLASSES, TOKENS = 2, 3  # the dimensions of logits: (B, C), or (B, L, V) at every token


def forward_one(
    model: nn.Module, x: Inputs, dims: Sequence[int] = (CLASSES,)
) -> tuple[Tensor, Inputs]:
    """Return the logits (1, C) of one input, and the input as a batch of one.

    Logits of other ``dims`` are returned if they are asked for: a language model's are (1, L, V).

    The input, a tensor or tensors by keyword, may have a batch dimension of one. The model is in
    the mode the client uses, and its buffers stay as they are; it may refuse by ``ModelError``.
    """
    # A batch of one may or may not have been added by the caller; only the model can tell.
    single = all(tensor.shape[:1] == (1,) for _, tensor in pieces(x))
    alone = _changed(x, lambda tensor: tensor.unsqueeze(0))
    found = _first_logits(model, [x, alone] if single else [alone], 1, dims)
    if isinstance(found, str):
        raise ModelError(
            f"the model does not take one input of shape {_described(x)}: {found}; "
            "give one sample with one label, or a batch with a label for each sample"
        )
    return found


def forward_batch(model: nn.Module, x: Inputs) -> Tensor:
    """Return the logits (B, C) of a batch of inputs (B, …), as ``run_batch`` does."""
    return run_batch(model, x)[0]


def run_batch(
    model: nn.Module, x: Inputs, dims: Sequence[int] = (CLASSES,)
) -> tuple[Tensor, Inputs]:
    """Return the logits (B, C) of inputs (B, …) and the inputs as used, or raise ``ModelError``."""
    found = _first_logits(model, [x], size := batch_size(x), dims)
    if isinstance(found, str):
        single = _described(_changed(x, lambda t: t[0]))
        raise ModelError(
            f"the model does not take a batch of {size} inputs of shape {single}: {found}"
        )
    return found


def _first_logits(
    model: nn.Module, batches: Sequence[Inputs], size: int, dims: Sequence[int]
) -> tuple[Tensor, Inputs] | str:
    """Return the logits of the first batch that the model takes, or why it takes none."""
    errors: list[str] = []
    for batched in (ready for given in batches for ready in _ready(model, given)):
        try:
            # BatchNorm in train mode writes its running statistics in place: into copies.
            buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
            alone = isinstance(batched, Tensor)
            arguments, keywords = ((batched,), {}) if alone else ((), dict(pieces(batched)))
            logits = logits_of(functional_call(model, buffers, arguments, keywords))
        except Exception as error:  # the user's own code may raise anything
            errors.append(in_a_line(error))
            continue
        if logits is not None and logits.ndim in dims and len(logits) == size:
            return logits, batched
        came = "not a tensor" if logits is None else tuple(logits.shape)
        each = logits is not None and logits.ndim == TOKENS
        hint = '; a language model is trained with loss="next-token"' if each else ""
        errors.append(f"the output is {came}, expected logits of shape ({size}, classes){hint}")
    return errors[0]


def logits_of(output: Any) -> Tensor | None:  # noqa: ANN401 - whatever a model returns
    """Return the logits of what a model returns: a tensor, a tuple or an object that holds them."""
    if isinstance(output, Tensor):
        return output
    found = getattr(output, "logits", None)
    if found is None and isinstance(output, Mapping):
        found = output.get("logits")
    if found is None and isinstance(output, tuple | list) and output:
        found = output[0]
    return found if isinstance(found, Tensor) else None


def row_of_logits(inputs: Tensor, output: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the input (1, I) and the output (1, C) of a linear layer that became the logits."""
    if output.ndim != 3 or len(output) != 1 or output.shape[-1] != logits.shape[-1]:
        return inputs, output
    row = int((output[0] - logits).abs().amax(-1).argmin())
    return inputs[:, row], output[:, row]


def batch_size(x: Inputs) -> int:
    """Return the first size of a batch of inputs; 0 if a tensor has none, or they differ."""
    sizes = {tensor.shape[0] if tensor.ndim else 0 for _, tensor in pieces(x)}
    return sizes.pop() if len(sizes) == 1 else 0


def gradients_of(loss: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Return the gradient of a loss by each parameter, None where it does not depend on one."""
    try:
        return torch.autograd.grad(loss, parameters, allow_unused=True)
    except RuntimeError as error:  # the user's own code may do anything with the graph
        raise ModelError(
            f"the model's gradient cannot be computed: {in_a_line(error)}; a model that keeps "
            "tensors of one run for the next has to be made anew, or put in train mode and back, "
            "before each run"
        ) from error


def _ready(model: nn.Module, x: Inputs) -> Iterator[Inputs]:
    """Yield the input in the model's dtype and on its device.

    Integers by keyword stay integers. A tensor of integers alone may be an image or token ids:
    only the model can tell, and it is asked for an image first.
    """
    like = next(model.parameters())
    if isinstance(x, Tensor) and not x.is_floating_point():
        yield x.detach().to(like)
    yield _changed(x, lambda t: t.detach().to(like if t.is_floating_point() else like.device))


def _changed(x: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    return assembled({keyword: change(tensor) for keyword, tensor in pieces(x)})


def _described(x: Inputs) -> str:
    shapes = {keyword: tuple(tensor.shape) for keyword, tensor in pieces(x)}
    return str(shapes[POSITIONAL] if shapes.keys() == {POSITIONAL} else shapes)


# Calls of ``nn.Embedding``: the layer's name, the number of rows of its table, and what entered it.
Lookups = list[tuple[str, int, Tensor]]


def tables_of(lookups: Lookups, batched: Inputs) -> dict[str, int]:
    """Return the number of rows of the table that each integer tensor went into, by keyword."""
    integers = {k: t for k, t in pieces(batched) if not t.is_floating_point()}
    sizes = {k: [rows for _, rows in tables_read(lookups, t)] for k, t in integers.items()}
    return {keyword: min(rows) for keyword, rows in sizes.items() if rows}


def tables_read(lookups: Lookups, tensor: Tensor) -> list[tuple[str, int]]:
    """Return the name and the number of rows of each table that a tensor went into."""
    place = tensor.data_ptr()
    pairs = [(name, rows) for name, rows, seen in lookups if seen.data_ptr() == place]
    if not pairs and not bool((tensor == tensor.flatten()[:1]).all()):  # as a mask of ones is
        flat = tensor.flatten()
        pairs = [(name, rows) for name, rows, seen in lookups if torch.equal(seen.flatten(), flat)]
    return pairs


@contextmanager
def watched_tables(model: nn.Module) -> Iterator[Lookups]:
    """Watch what enters the embedding tables of a model while it runs."""
    lookups: Lookups = []

    def look(name: str, inputs: tuple[Tensor, ...]) -> None:
        if inputs and isinstance(inputs[0], Tensor):
            lookups.append((name, tables[name].num_embeddings, inputs[0].detach()))

    # A subclass with a forward of its own may make positions of a mask, instead of looking up rows.
    embeddings = {n: m for n, m in model.named_modules() if isinstance(m, nn.Embedding)}
    tables = {n: m for n, m in embeddings.items() if type(m).forward is nn.Embedding.forward}
    with watched(tables, before=look):
        yield lookups


IMAGE_SIZES = (32, 28, 64, 96, 128, 224, 256, 299, 384)
TOKEN_KEYWORDS = ("input_ids", POSITIONAL)
SEQUENCE_LENGTHS = (16, 24)


def accepted_shapes(model: nn.Module) -> Iterator[Layout]:
    """Yield inputs the model accepts: images in usual sizes, vectors, sequences of tokens."""
    shapes: dict[tuple[int, ...], None] = {}  # ordered: the first layer defined is likely the first
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            shapes |= dict.fromkeys((module.in_channels, size, size) for size in IMAGE_SIZES)
        elif isinstance(module, nn.Linear):
            shapes |= dict.fromkeys([(module.in_features,), *_images_of(module.in_features)])
    for shape in shapes:
        try:
            with torch.no_grad():
                forward_one(model, torch.zeros(shape))
        except ModelError:
            continue
        yield shape
    if any(isinstance(module, nn.Embedding) for module in model.modules()):
        yield from _token_layouts(model)


def _token_layouts(model: nn.Module) -> Iterator[Layout]:
    """Yield the layouts of token sequences that the model takes, for the first keyword it knows."""
    for keyword in TOKEN_KEYWORDS:
        found = [one for n in SEQUENCE_LENGTHS if (one := _token_layout(model, keyword, n))]
        yield from found
        if found:
            return


def _token_layout(model: nn.Module, keyword: str, length: int) -> Layout | None:
    ids = torch.zeros(length, dtype=torch.long)
    try:
        with torch.no_grad(), watched_tables(model) as lookups:
            given = ids if keyword == POSITIONAL else {keyword: ids}
            _, batched = forward_one(model, given, (CLASSES, TOKENS))
    except ModelError:
        return None
    layout = layout_of(batched, tables_of(lookups, batched))
    known = isinstance(layout, InputSpec) and any(part.below for part in layout.parts)
    return layout if known else None


def _images_of(features: int) -> Iterator[tuple[int, ...]]:
    for channels in (1, 3):
        side = round((features / channels) ** 0.5)
        if channels * side * side == features:
            yield (channels, side, side)


def random_input(layout: Layout, index: int, generator: torch.Generator) -> Inputs:
    """Return random tokens, or noise, fine or coarse in turn."""
    if isinstance(layout, InputSpec):
        return random_tokens(layout, index, generator)
    return random_tensor(layout, index, generator)


def random_tensor(shape: Shape, index: int, generator: torch.Generator) -> Tensor:
    """Return noise of this shape, fine or coarse in turn."""
    if len(shape) == 3 and index % 2:
        small = torch.randn(1, shape[0], 4, 4, generator=generator)
        return nn.functional.interpolate(small, shape[1:], mode="bilinear")[0]
    return torch.randn(shape, generator=generator)

"""Every model of the registry at once: shapes, gradients of gradients, heads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from softleak.core.errors import ModelError
from softleak.paper.models import MODELS, alexnet, fcn4, lenet, mlp, resnet18, resnet20, vgg, vit

LARGE = {"alexnet", "fcn4", "resnet50", "resnet50_cifar"}
SMALL = sorted(set(MODELS) - LARGE)
BIASED_HEAD = {"resnet20", "resnet32", "resnet56"}


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def head(model: nn.Module) -> nn.Linear:
    return [module for module in model.modules() if isinstance(module, nn.Linear)][-1]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_default_input_gives_logits(name: str) -> None:
    spec = MODELS[name]
    model = spec(classes=7).eval()
    with torch.no_grad():
        logits = model(torch.rand(1, *spec.input_shape))
    assert logits.shape == (1, 7)
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_head_is_last_and_biased_only_where_said(name: str) -> None:
    with torch.device("meta"):
        last = head(MODELS[name](classes=7))
    assert last.out_features == 7
    assert (last.bias is not None) == (name in BIASED_HEAD)


@pytest.mark.parametrize("name", SMALL)
def test_gradient_can_be_differentiated(name: str) -> None:
    spec = MODELS[name]
    model = spec().eval()
    x = torch.rand(1, *spec.input_shape, requires_grad=True)
    loss = nn.functional.cross_entropy(model(x), torch.tensor([1]))
    gradient = torch.autograd.grad(loss, head(model).weight, create_graph=True)[0]
    (second,) = torch.autograd.grad(gradient.square().sum(), x)
    assert second.isfinite().all()
    assert second.abs().max() > 0


# Counted by hand from the layer sizes; torchvision's counts less the head's bias.
@pytest.mark.parametrize(
    ("model", "count"),
    [
        (lambda: lenet(), 912 + 3612 + 3612 + 7680),
        (lambda: lenet(in_channels=1, image=28), 312 + 3612 + 3612 + 12 * 49 * 10),
        (lambda: fcn4(), 12288 * 4096 + 4096 * 1024 + 1024 * 256 + 256 * 17),
        (lambda: mlp(8, (4,), 3), 8 * 4 + 4 + 4 * 3),
        (lambda: alexnet(1000, head_bias=True), 61_100_840),
        (lambda: resnet18(1000, head_bias=True), 11_689_512),
        (lambda: MODELS["resnet50"](classes=1000, head_bias=True), 25_557_032),
        (lambda: resnet20(), 269_722),
        (lambda: MODELS["resnet56"](), 853_018),
    ],
)
def test_parameter_counts(model: Callable[[], nn.Module], count: int) -> None:
    with torch.device("meta"):
        assert parameters(model()) == count


def test_cifar_form_keeps_the_image_size_in_the_stem() -> None:
    x = torch.rand(1, 3, 32, 32)
    sizes = {}
    for name in ("resnet18", "resnet18_cifar"):
        model = MODELS[name]().eval()
        model.layer4.register_forward_hook(
            lambda _, __, out, name=name: sizes.__setitem__(name, tuple(out.shape[2:]))
        )
        model(x)
    assert sizes == {"resnet18": (1, 1), "resnet18_cifar": (4, 4)}


def test_torchvision_key_names() -> None:
    with torch.device("meta"):
        keys = {name: set(MODELS[name]().state_dict()) for name in ("alexnet", "resnet50", "vit")}
    assert {"features.0.weight", "features.10.bias", "classifier.6.weight"} <= keys["alexnet"]
    assert {"conv1.weight", "layer1.0.downsample.1.running_var"} <= keys["resnet50"]
    assert {"layer4.2.conv3.weight", "bn1.bias", "fc.weight"} <= keys["resnet50"]
    block = "encoder.layers.encoder_layer_3"
    assert {"class_token", "conv_proj.bias", "encoder.pos_embedding"} <= keys["vit"]
    assert {f"{block}.self_attention.in_proj_weight", f"{block}.mlp.3.bias"} <= keys["vit"]
    assert {"encoder.ln.weight", "heads.head.weight"} <= keys["vit"]


def test_attention_agrees_with_pytorch() -> None:
    ours = vit().encoder.layers[0].self_attention
    theirs = nn.MultiheadAttention(96, 4, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    x = torch.rand(2, 5, 96)
    torch.testing.assert_close(ours(x), theirs(x, x, x, need_weights=False)[0])


def test_dropout_is_silent_in_eval_mode() -> None:
    model = vgg().eval()
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))


def test_activation_is_the_callers() -> None:
    model = lenet(activation=nn.Tanh)
    assert [type(m) for m in model.features][1::2] == [nn.Tanh] * 3


def test_specs_are_frozen_and_the_registry_read_only() -> None:
    with pytest.raises(AttributeError):
        MODELS["lenet"].input_shape = (1, 1, 1)  # type: ignore[misc]
    with pytest.raises(TypeError):
        MODELS["lenet"] = MODELS["vgg"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: lenet(classes=0), "classes"),
        (lambda: lenet(image=-1), "image"),
        (lambda: fcn4(image=0), "image"),
        (lambda: mlp(8, (4, 0)), "hidden"),
        (lambda: vgg(image=30), "multiple"),
        (lambda: vgg(dropout=1.0), "dropout"),
        (lambda: vit(patch=5), "patch"),
        (lambda: vit(heads=5), "heads"),
        (lambda: vit(depth=0), "depth"),
    ],
)
def test_impossible_options_are_refused(build: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        build()

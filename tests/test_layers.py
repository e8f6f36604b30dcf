"""Layers with a model axis, one by one: which modules they stand for, and the three ways to a clipped sum."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from mithridate.training import layers
from mithridate.training.clipping import Clipping

MODELS, BATCH = 3, 4


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def frame(models: int = MODELS, batch: int = BATCH) -> layers.Layout:
    return layers.Layout(models, Clipping("float32"), torch.full((models,), batch, dtype=torch.int32), None)


def assert_parts(part: layers.Pieces, gradients: Tensor) -> None:
    """`part` is what these gradients (models x batch x entries, float64) are, for norms and for sums."""
    squares = part.squared_norms()
    assert squares.dtype == torch.float64
    # Never below the exact norm but for single precision, and at most the slack above it.
    exact = gradients.square().sum(dim=2)
    torch.testing.assert_close(squares, exact, rtol=2e-3, atol=1e-12)
    assert (squares >= exact * (1 - 1e-6)).all()
    scale = draw(99, MODELS, BATCH).abs()
    scale[0, 1] = 0.0
    out = torch.full((MODELS, 2 * gradients.shape[2]), torch.nan)[:, ::1]
    part.write_sums(scale, out[:, : gradients.shape[2]])  # a part of a wider row, as in the flat weights
    expected = (scale.double().unsqueeze(2) * gradients).sum(dim=1)
    torch.testing.assert_close(out[:, : gradients.shape[2]].double(), expected, rtol=1e-4, atol=1e-5)
    assert out[:, gradients.shape[2] :].isnan().all()


# --- the parts --------------------------------------------------------------------------------------------------------


def test_stored() -> None:
    gradients = draw(1, MODELS, BATCH, 7)
    assert_parts(layers.Stored(gradients, frame()), gradients.double())


def test_stored_with_known_norms_believes_them() -> None:
    known = torch.full((MODELS, BATCH), 5.0, dtype=torch.float64)
    assert layers.Stored(draw(1, MODELS, BATCH, 7), frame(), known).squared_norms() is known


@pytest.mark.parametrize("has_bias", [False, True])
def test_outer(has_bias: bool) -> None:
    inputs, gradients = draw(1, MODELS, BATCH, 6), draw(2, MODELS, BATCH, 5)
    part = layers.Outer(inputs, gradients, frame(), has_bias=has_bias)
    products = torch.einsum("mbo,mbk->mbok", gradients.double(), inputs.double()).flatten(2)
    if has_bias:
        exact = products.square().sum(dim=2) + gradients.double().square().sum(dim=2)
        torch.testing.assert_close(part.squared_norms(), exact, rtol=1e-5, atol=0)
    assert_parts(layers.Outer(inputs, gradients, frame(), has_bias=False), products)


# positions x (features + outputs) < features x outputs: the Gram matrices are cheaper.
WAYS = {"ghost": (20, 15, 4), "stored": (5, 4, 9), "passing": (5, 4, 9)}


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_contraction(way: str, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    features, outputs, positions = WAYS[way]
    assert layers.is_ghost_cheaper(features, outputs, positions) == (way == "ghost")
    if way == "passing":  # Room for the gradients of one example of each model at a time.
        room = 4 * MODELS * groups * features * outputs
        monkeypatch.setitem(layers._STORED_BYTES, "cpu", room)  # pyright: ignore[reportPrivateUsage]
        assert not layers.may_be_stored(MODELS * BATCH, groups * features * outputs, torch.device("cpu"))
    inputs = draw(1, MODELS, BATCH, groups, features, positions)
    gradients = draw(2, MODELS, BATCH, groups, outputs, positions)
    exact = torch.einsum("mbgot,mbgkt->mbgok", gradients.double(), inputs.double()).flatten(2)
    assert_parts(layers.Contraction(inputs, gradients, frame()), exact)


def test_lookups_add_up_positions_of_the_same_word() -> None:
    tokens = torch.randint(3, (MODELS, BATCH, 6), generator=torch.Generator().manual_seed(1))
    gradients = draw(2, MODELS, BATCH, 6, 4)
    exact = torch.zeros(MODELS, BATCH, 3, 4, dtype=torch.float64)
    for m, b, t in itertools.product(range(MODELS), range(BATCH), range(6)):
        exact[m, b, tokens[m, b, t]] += gradients[m, b, t].double()
    assert_parts(layers.Lookups(tokens, gradients, 3, frame()), exact.flatten(2))


def makers() -> dict[str, layers.Pieces]:
    inputs, gradients = draw(1, MODELS, BATCH, 6), draw(2, MODELS, BATCH, 5)
    inputs[1, 2], gradients[0, 0] = torch.inf, torch.nan
    wide, tall = inputs[:, :, None, :, None], gradients[:, :, None, :, None]
    tokens = torch.zeros(MODELS, BATCH, 1, dtype=torch.int64)
    return {
        "stored": layers.Stored(gradients, frame()),
        "outer": layers.Outer(inputs, gradients, frame(), has_bias=False),
        "contraction": layers.Contraction(wide, tall, frame()),
        "stored contraction": layers.Contraction(
            wide.expand(-1, -1, -1, -1, 9), tall.expand(-1, -1, -1, -1, 9), frame()
        ),
        "lookups": layers.Lookups(tokens, gradients[:, :, None], 2, frame()),
    }


@pytest.mark.parametrize("name", makers())
def test_what_is_forgotten_adds_nothing(name: str) -> None:
    part = makers()[name]
    squares = part.squared_norms()
    trusted = torch.isfinite(squares)
    assert not trusted[0, 0]
    part.forget(trusted)
    size = {"stored": 5, "lookups": 10}.get(name, 30)
    out = torch.zeros(MODELS, size)
    part.write_sums(trusted.float(), out)
    assert out.isfinite().all()
    assert (out[2] != 0).any()


# --- which modules ----------------------------------------------------------------------------------------------------


class OwnLinear(nn.Linear):
    pass


class OwnConv(nn.Conv2d):
    pass


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (nn.Linear(2, 3), layers.Linear),
        (nn.Conv1d(2, 3, 1), layers.Conv),
        (nn.Conv2d(2, 3, 1), layers.Conv),
        (nn.GroupNorm(1, 2), layers.GroupNorm),
        (nn.LayerNorm(2), layers.LayerNorm),
        (nn.Embedding(4, 2), layers.Embedding),
        (nn.Embedding(4, 2, padding_idx=1), layers.Embedding),
        (OwnLinear(2, 3), None),
        (OwnConv(2, 3, 1), None),
        (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), None),
        (nn.Conv3d(2, 3, 1), None),
        (nn.ConvTranspose2d(2, 3, 1), None),
        (nn.GroupNorm(1, 2, affine=False), None),
        (nn.LayerNorm(2, elementwise_affine=False), None),
        (nn.Embedding(4, 2, max_norm=1.0), None),
        (nn.Embedding(4, 2, sparse=True), None),
        (nn.Embedding(4, 2, scale_grad_by_freq=True), None),
        (nn.BatchNorm2d(2), None),
        (nn.Bilinear(2, 2, 2), None),
        (nn.ReLU(), None),
        (nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)), None),
    ],
    ids=str,
)
def test_only_exact_types_have_a_layer(module: nn.Module, kind: type[layers.Layer] | None) -> None:
    found = layers.layer_of(module)
    assert found is None if kind is None else type(found) is kind
    if found is not None:
        assert list(found.names) == [name for name, _ in module.named_parameters()]


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["conv2d", "linear on a sequence"])
def test_gradients_that_do_not_fit_give_the_same_sums(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Conv2d(2, 3, 3) if name == "conv2d" else nn.Linear(4, 3)
    inputs = draw(1, MODELS * BATCH, 2, 7, 8) if name == "conv2d" else draw(1, MODELS * BATCH, 30, 4)
    layer = layers.layer_of(module)
    assert layer is not None
    parameters = [draw(5, MODELS, *value.shape) for value in module.parameters()]
    errors = draw(6, *layer.forward(inputs, parameters, frame()).shape)
    found = []
    for room in (2**28, 4):
        monkeypatch.setitem(layers._STORED_BYTES, "cpu", room)  # pyright: ignore[reportPrivateUsage]
        parts = layer.parts(inputs, errors, parameters, frame())
        sums = [torch.zeros(MODELS, value[0].numel()) for value in parameters]
        for part, out in zip(parts, sums, strict=True):
            part.write_sums(torch.ones(MODELS, BATCH), out)
        found.append((torch.stack([part.squared_norms() for part in parts]).sum(dim=0), *sums))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-4)
    assert (found[1][0] >= found[0][0] * (1 - 1e-6)).all()

"""What is refused, where, and with which remedy."""

import re

import pytest
import torch
from reference import Scaled, general_zoo, zoo
from torch import Tensor, nn

from mithridate import ConfigError
from mithridate.training import models


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.BatchNorm1d(6), r"body\.layer, BatchNorm1d.*Replace it by torch\.nn\.GroupNorm\(1, 6\)"),
        (nn.BatchNorm2d(64), r"body\.layer, BatchNorm2d.*Replace it by torch\.nn\.GroupNorm\(32, 64\)"),
        (nn.BatchNorm3d(34), r"Replace it by torch\.nn\.GroupNorm\(17, 34\)"),
        (nn.BatchNorm2d(4, track_running_stats=False), r"Replace it by torch\.nn\.GroupNorm\(4, 4\)"),
        (nn.SyncBatchNorm(37), r"Replace it by torch\.nn\.GroupNorm\(1, 37\)"),
        (nn.LazyBatchNorm2d(), r"Replace it by torch\.nn\.GroupNorm\."),
        (nn.InstanceNorm2d(4, track_running_stats=True), r"body\.layer, InstanceNorm2d.*Set track_running_stats=False"),
        (nn.Dropout(0.5), r"body\.layer, Dropout\(p=0\.5.*Remove it or set p=0"),
        (nn.Dropout2d(0.1), r"body\.layer, Dropout2d.*set p=0"),
        (nn.AlphaDropout(0.1), r"AlphaDropout.*set p=0"),
        (nn.RReLU(), r"RReLU.*Replace it by torch\.nn\.LeakyReLU\(\)"),
        (nn.FractionalMaxPool2d(2, output_size=3), r"FractionalMaxPool2d.*average or maximum pooling"),
        (nn.LSTM(3, 5, batch_first=True), r"body\.layer, LSTM.*torch\.nn\.Linear"),
        (nn.GRU(3, 5), r"body\.layer, GRU.*torch\.nn\.Linear"),
        (nn.MultiheadAttention(4, 2, dropout=0.1), r"MultiheadAttention.*Set dropout=0"),
        (nn.Embedding(5, 2, max_norm=1.0), r"Embedding.*Leave max_norm out"),
        (nn.Embedding(5, 2, sparse=True), r"Embedding.*Set sparse=False"),
        (nn.LazyLinear(3), r"Parameter body\.layer\.weight has no shape yet.*give the layer its sizes"),
        (nn.Linear(3, 3).double(), r"body\.layer\.weight is torch\.float64.*Call \.float\(\)"),
        (nn.Linear(3, 3).requires_grad_(False), r"body\.layer\.weight is frozen.*register_buffer"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_refusal_names_the_layer_and_the_remedy(layer: nn.Module, message: str) -> None:
    module = nn.ModuleDict({"head": nn.Linear(2, 2), "body": nn.ModuleDict({"layer": layer})})
    with pytest.raises(ConfigError, match=message):
        models.check_module(module)


def test_what_replaces_the_batch_norm_of_rows_still_sees_them() -> None:
    """A group for each channel would turn every row into the same numbers."""
    with pytest.raises(ConfigError) as caught:
        models.check_module(nn.BatchNorm1d(6))
    found = re.search(r"GroupNorm\((\d+), (\d+)\)", str(caught.value))
    assert found is not None
    rows = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    normalised = nn.GroupNorm(int(found[1]), int(found[2]))(rows)
    assert normalised.std(dim=0).min() > 0.01


def test_the_module_itself_may_be_the_layer() -> None:
    with pytest.raises(ConfigError, match=r"The model BatchNorm1d\(3"):
        models.check_module(nn.BatchNorm1d(3))


def test_a_module_without_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to train"):
        models.check_module(nn.Flatten())


def test_the_zoo_is_suitable() -> None:
    for module, _ in (zoo() | general_zoo()).values():
        models.check_module(module)


def test_dropout_that_drops_nothing_and_instance_norm_without_state_pass() -> None:
    models.check_module(nn.Sequential(nn.Dropout(0.0), nn.InstanceNorm1d(3), nn.Linear(3, 2)))


# --- forward pass -----------------------------------------------------------------------------------------------------


class Counting(nn.Module):
    """Counts its calls in a buffer."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.head(x)


class Noisy(nn.Module):
    """Drops by a function, which no list of layers shows."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(30, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(x))


def test_a_buffer_that_changes_is_refused_and_the_module_is_left_alone() -> None:
    module = Counting()
    with pytest.raises(ConfigError, match="Buffer calls changes in the forward pass"):
        models.check_forward(module, torch.ones(3))
    assert module.calls == 0


def test_random_numbers_in_the_forward_pass_are_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(ConfigError, match="draws random numbers"):
        models.check_forward(Noisy(), torch.ones(30))


def test_a_constant_buffer_passes() -> None:
    models.check_forward(Scaled(), torch.ones(6))


# --- shared parameters, fresh starts ----------------------------------------------------------------------------------


def test_a_fresh_start_is_the_draw_of_a_new_module() -> None:
    torch.manual_seed(3)
    module = nn.Linear(5, 4)
    new = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    torch.manual_seed(3)
    models.reset_for_fresh_start(module)
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, new[name])


class OwnStart(nn.Module):
    """Draws its layer's weights by a law of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.scale = nn.Parameter(torch.ones(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.layer.weight, 0.25)
        nn.init.ones_(self.scale)


def test_a_parent_has_the_last_word_on_its_children() -> None:
    module = nn.Sequential(OwnStart())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(7.0)
    models.reset_for_fresh_start(module)
    inner = module[0]
    assert isinstance(inner, OwnStart)
    assert (inner.layer.weight == 0.25).all()
    assert (inner.scale == 1.0).all()
    assert (inner.layer.bias.abs() < 1).all()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (Scaled(), "scale"),
        (nn.Sequential(nn.Linear(4, 4), nn.MultiheadAttention(4, 2)), r"1\.in_proj_weight"),
        # Its reset writes into a weight that is computed from others, so nothing would be drawn.
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), r"parametrizations\.weight\.original0"),
    ],
    ids=["bare parameter", "attention", "weight norm"],
)
def test_what_nobody_draws_is_refused_and_left_as_it_was(module: nn.Module, name: str) -> None:
    before = {key: value.detach().clone() for key, value in module.named_parameters()}
    with pytest.raises(ConfigError, match=rf"Parameter {name} cannot be .*pass a function that builds the model"):
        models.reset_for_fresh_start(module)
    for key, value in module.named_parameters():
        assert torch.equal(value, before[key])


class Centred(nn.Module):
    """Subtracts the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x - x.mean(0, keepdim=True))


def test_a_module_whose_examples_depend_on_each_other_is_refused() -> None:
    with pytest.raises(ConfigError, match="mixes examples"):
        models.check_examples_apart(Centred(), (3,), torch.float32)
    models.check_examples_apart(nn.Sequential(nn.Linear(3, 2), nn.Softmax(1)), (3,), torch.float32)
    tokens = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 2))
    models.check_examples_apart(tokens, (3,), torch.int64)

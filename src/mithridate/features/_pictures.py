"""Pictures for networks of torch: what is taken, how it is stretched and scaled, and in which batches it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate.errors import ConfigError
from mithridate.features._denoising import denoised
from mithridate.features._twice import RowMachine
from mithridate.features.pretrained import cores

if TYPE_CHECKING:
    from torch import Tensor


def as_pictures(x: Any, title: str) -> tuple[npt.NDArray[np.uint8], Sequence[npt.NDArray[np.uint8]]]:
    """Images as they are hashed, and one by one as RGB.

    Raises:
        ConfigError: they are not 8-bit images [n, H, W] or [n, 1 or 3, H, W].
    """
    try:
        found = np.asarray(x)
    except ValueError as error:
        raise ConfigError(f"{title} takes images of one size as one array, got images of different shapes.") from error
    if found.dtype != np.uint8 or found.ndim not in (3, 4) or (found.ndim == 4 and found.shape[1] not in (1, 3)):
        raise ConfigError(
            f"{title} takes 8-bit images (uint8) of shape [n, H, W] or [n, 3, H, W], got {found.dtype} of shape "
            f"{found.shape}; move channels that come last with np.moveaxis(x, -1, 1)."
        )
    if not len(found) or not min(found.shape[1:]):
        raise ConfigError(f"{title} needs at least one image with pixels, got shape {found.shape}.")
    coloured = found if found.ndim == 4 else found[:, None]
    return found, list(np.broadcast_to(coloured, (len(found), 3, *found.shape[-2:])))


def probe_pictures() -> npt.NDArray[np.uint8]:
    """Two fixed images, by which settings that change bits are found out."""
    places = np.arange(2 * 3 * 40 * 48, dtype=np.int64)
    return (places * places % 251).astype(np.uint8).reshape(2, 3, 40, 48)


def check_denoise(deviation: Any) -> None:
    """Require a deviation of noise in pixels from 0 to 1, or None.

    Raises:
        ConfigError: it is something else.
    """
    if deviation is not None:
        _validate.number_in(0, 1, denoise=deviation)


class Movable(Protocol):
    """Parameters that can be moved to a device."""

    def to(self, change: Callable[[Tensor], Tensor]) -> None:
        """Change all tensors."""


def torch_machine(
    network: Callable[[Tensor], Tensor],
    parameters: Sequence[Movable],
    *,
    device: str,
    batch: int,
    size: int,
    scale: tuple[Any, Any],
    mirrored: bool,
    denoise: float = 0.0,
    half: bool = False,
) -> RowMachine:
    """A network on a device, in single precision; on a CPU every picture is alone on a core.

    Args:
        network: from pictures [k, 3, size, size] to embeddings [k, d].
        parameters: of the network, in single precision.
        device: `cpu` or `cuda`.
        batch: pictures of one call.
        size: pixels of either side.
        scale: what is subtracted from every pixel, and what the difference is divided by; numbers, or one a channel.
        mirrored: whether the embedding is the mean of those of a picture and its mirror image.
        denoise: standard deviation of the noise that is taken out of pictures first, of pixels from 0 to 1.
        half: in half precision on a GPU, for networks whose activations are known to fit.
    """
    import torch
    import torch.nn.functional as F

    from mithridate._torch import products, single_threaded, usual_settings

    where = torch.device(device)
    kind = torch.float16 if half and device == "cuda" else torch.float32

    def place(tensor: Tensor) -> Tensor:
        moved = tensor.to(where, kind)
        return moved.contiguous(memory_format=torch.channels_last) if moved.ndim == 4 else moved

    for each in parameters:
        each.to(place)
    shift, width = (torch.as_tensor(each, dtype=torch.float32, device=where).reshape(-1, 1, 1) for each in scale)

    def embed(pictures: Tensor) -> Tensor:
        values = pictures.to(where).float()
        if denoise:
            values = denoised(values, 255.0 * denoise)
        if values.shape[-2:] != (size, size):
            values = F.interpolate(values, (size, size), mode="bicubic", align_corners=False, antialias=True)
            values = values.clamp_(0.0, 255.0)
        values = ((values - shift) / width).to(kind).contiguous(memory_format=torch.channels_last)
        if not mirrored:
            return network(values)
        return (network(values) + network(values.flip(-1))) / 2

    def call(inputs: list[Any]) -> npt.NDArray[np.float32]:
        blank = np.zeros_like(next(each for each in inputs if each is not None))
        pictures = torch.from_numpy(np.stack([blank if each is None else each for each in inputs]))
        with torch.inference_mode():
            return embed(pictures).float().cpu().numpy()

    @contextmanager
    def session() -> Iterator[None]:
        with usual_settings(), products("float32", where), single_threaded():
            yield

    def settle() -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(False)

    # On a GPU one batch is made ready while another one is computed.
    workers = 2 if device == "cuda" else cores()
    return RowMachine(call, batch, None, workers, session, settle)


def stretched(picture: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """One picture [3, H, W] at another size, by Pillow, which computes in whole numbers."""
    if picture.shape[-2:] == (size, size):
        return picture
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(np.moveaxis(picture, 0, -1)))
    return np.moveaxis(np.asarray(image.resize((size, size), Image.Resampling.BICUBIC)), -1, 0)

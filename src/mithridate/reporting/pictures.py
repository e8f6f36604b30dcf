"""Pictures of test points, small enough to travel inside one file."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

from mithridate.errors import ConfigError

Pixels = npt.NDArray[np.uint8]

# Points at each end of the order, of all and of the wrong ones, that get a picture.
_OF_EACH = 100
# Bytes of all pictures together; as text in the page they take a third more.
_BUDGET = 3_000_000
# Longer sides are averaged down to at most this.
_SIDE = 64
# What PNG calls pictures of one, three and four channels.
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}


def checked_pictures(pictures: npt.ArrayLike, points: int) -> Pixels:
    """Pictures as points x channels x height x width.

    Raises:
        ConfigError: they are not 8-bit images, or not one for each point.
    """
    array = np.asarray(pictures)
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        raise ConfigError(
            "Expected pictures as 8-bit images, points x height x width or points x channels x height x width, "
            f"got {array.dtype} of shape {array.shape}."
        )
    if len(array) != points:
        raise ConfigError(f"Expected one picture for each of {points:,} points, got {len(array):,}.")
    array = array[:, None] if array.ndim == 3 else array
    if array.shape[1] not in _COLOUR_TYPES or 0 in array.shape:
        raise ConfigError(
            f"Expected pictures with 1, 3 or 4 channels, points x channels x height x width, got shape {array.shape}; "
            "if the channels come last, use np.moveaxis(pictures, -1, 1)."
        )
    return array


def choose(order: npt.NDArray[np.intp], wrong: npt.NDArray[np.bool_] | None) -> list[int]:
    """Which points get a picture: the least and the most certain, of all points and of the wrong ones.

    Args:
        order: all points, least certain first.
        wrong: which of them have a wrong label, where that is known.
    """
    orders = [order] if wrong is None else [order, order[wrong[order]]]
    groups = [points[:_OF_EACH] for some in orders for points in (some, some[::-1])]
    # A budget that runs out must not leave one end without pictures: take them in turns.
    turns = [int(group[i]) for i in range(_OF_EACH) for group in groups if i < len(group)]
    return list(dict.fromkeys(turns))


def encode(pictures: Pixels, chosen: list[int]) -> dict[int, bytes]:
    """PNG files of the chosen points, in their order, until the budget is spent."""
    encoded: dict[int, bytes] = {}
    spent = 0
    for point in chosen:
        file = png(reduced(pictures[point]))
        spent += len(file)
        if spent > _BUDGET:
            break
        encoded[point] = file
    return encoded


def reduced(picture: Pixels) -> Pixels:
    """A picture averaged over square blocks, so that no side is longer than 64."""
    channels, height, width = picture.shape
    block = -(-max(height, width) // _SIDE)
    if block == 1:
        return picture
    padded = np.pad(picture, ((0, 0), (0, -height % block), (0, -width % block)), mode="edge")
    blocks = padded.reshape(channels, padded.shape[1] // block, block, padded.shape[2] // block, block)
    return blocks.mean(axis=(2, 4)).round().astype(np.uint8)


def png(picture: Pixels) -> bytes:
    """A PNG file of one picture, channels x height x width.

    References: Portable Network Graphics, W3C Recommendation, sections 11.2 (chunks) and 9.2 (filter type 0).
    """
    channels, height, width = picture.shape
    rows = np.moveaxis(picture, 0, -1).reshape(height, width * channels)
    raw = np.hstack([np.zeros((height, 1), dtype=np.uint8), rows]).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

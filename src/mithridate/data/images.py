"""Image files to arrays of one size, each by itself and by fixed rules."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._io.files import opened_file
from mithridate._io.pieces import made
from mithridate._io.scratch import scratch
from mithridate._text import plural
from mithridate.data.declarations import Images
from mithridate.errors import ArtifactError, ConfigError

Pixels = npt.NDArray[np.uint8]

# Only these decoders are let near a file; Pillow has many more.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
# A file of a few bytes can claim to be larger than all memory.
_MOST_PIXELS = 1 << 26
# What decoders raise on damaged files.
_UNREADABLE = (
    OSError,
    SyntaxError,
    ValueError,
    ArithmeticError,
    LookupError,
    EOFError,
    TypeError,
    AttributeError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
)


@dataclass(frozen=True)
class Folder:
    """The image files of a folder, in the order of their paths.

    Attributes:
        root: the folder.
        names: of the files, relative to the root, with forward slashes.
        labels: the folder that each file lies in; None where they all lie in the root.
        ignored: how many files are not images by their names.
        units: the folder above that; None where there is none.
    """

    root: Path
    names: tuple[str, ...]
    labels: tuple[str, ...] | None
    ignored: int
    units: tuple[str, ...] | None = None


def list_folder(root: Path) -> Folder:
    """Find the images of a folder, or of its subfolders, which then name the classes. Hidden files are left out.

    Raises:
        ArtifactError: the folder cannot be read, or holds no images.
        ConfigError: images lie beside the folders of the classes.
    """
    names, labels, ignored = _listing(root)
    if not names:
        deeper = _below_classes(root)
        raise ArtifactError(
            f"{root} holds no images ({', '.join(SUFFIXES)}); give a folder of them, or one with a folder per class."
            if deeper is None
            else f"{root} holds images one level deeper than those of classes, such as {deeper!r}; if its folders are "
            "units, such as vendors, say what one is called: unit='vendor'."
        )
    return Folder(root, names, labels, ignored)


def _below_classes(root: Path) -> str | None:
    """An image that lies as those of units do, if there is one."""
    with contextlib.suppress(OSError):
        for unit in sorted(_entries(root)[2]):
            for label in sorted(_entries(root / unit)[2]):
                for name in sorted(_entries(root / unit / label)[0]):
                    return f"{unit}/{label}/{name}"
    return None


def list_units(root: Path, unit: str) -> Folder:
    """Find the images of a folder in which every unit has a folder of its own, with those of the classes in it.

    Raises:
        ArtifactError: the folder cannot be read.
        ConfigError: images lie elsewhere, or nowhere.
    """
    level = f"{unit.upper()}/CLASS/FILE"
    try:
        outside, ignored, folders = _entries(root)
    except OSError as error:
        raise _no_folder(root, error) from error
    names: list[str] = []
    for folder in folders:
        found, labels, foreign = _listing(root / folder)
        outside += [f"{folder}/{name}" for name in found] if labels is None else []
        names += [f"{folder}/{name}" for name in found] if labels is not None else []
        ignored += foreign
    if outside or not names:
        where = f"holds images that lie elsewhere, such as {sorted(outside)[0]!r}" if outside else "has none there"
        raise ConfigError(
            f"With unit = {unit!r}, images are looked for as {level} in {root}, which {where}. Put the images of every "
            f"{unit} into a folder of its own, or name a table that maps files to {plural(unit)} as units."
        )
    names.sort()
    steps = [name.split("/") for name in names]
    owners, classes = (tuple(each[level] for each in steps) for level in (0, 1))
    return Folder(root, tuple(names), classes, ignored, owners)


def _listing(root: Path) -> tuple[tuple[str, ...], tuple[str, ...] | None, int]:
    """The images of a folder or of its subfolders, which then name the classes, and how many other files there are."""
    try:
        names, ignored, folders = _entries(root)
        inner: list[str] = []
        for folder in folders:
            found, foreign, _ = _entries(root / folder)
            inner.extend(f"{folder}/{name}" for name in found)
            ignored += foreign
    except OSError as error:
        raise _no_folder(root, error) from error
    if names and inner:
        raise ConfigError(
            f"{root} holds images beside folders of images, such as {names[0]!r}; put each into the folder of "
            "its class, or all into one folder."
        )
    names = sorted(names or inner)
    bad = next((name for name in names if not name.isprintable()), None)
    if bad is not None:
        raise ArtifactError(f"The name {bad!r} in {root} holds characters that cannot be shown; rename it.")
    return tuple(names), tuple(name.split("/")[0] for name in names) if inner else None, ignored


def _no_folder(root: Path, error: OSError) -> ArtifactError:
    return ArtifactError(f"Cannot read the folder {root}: {error.strerror}. Check its permissions.")


def _entries(folder: Path) -> tuple[list[str], int, list[str]]:
    """The names of the images in a folder, how many other files there are, and the names of the folders."""
    names: list[str] = []
    folders: list[str] = []
    foreign = 0
    with os.scandir(folder) as entries:  # which asks the system once for many files
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if _is(entry, os.path.isfile, entry.is_file):
                is_image = os.path.splitext(entry.name)[1].lower() in SUFFIXES
                names += [entry.name] if is_image else []
                foreign += not is_image
            elif _is(entry, os.path.isdir, entry.is_dir):
                folders.append(entry.name)
    return names, foreign, folders


def _is(entry: os.DirEntry[str], of_path: Callable[[str], bool], of_entry: Callable[[], bool]) -> bool:
    try:
        return of_entry()
    except OSError:  # a link that leads nowhere, which is no file
        return of_path(entry.path)


def load(root: Path, names: Sequence[str], declared: Images) -> Pixels:
    """The image files of these names in a folder, decoded, as [n, channels, height, width].

    Raises:
        ArtifactError: a file is not a readable image.
        ConfigError: Pillow is not installed.
    """
    out = _empty(len(names), declared)
    for row, name in enumerate(names):
        with opened(root / name) as image:
            out[row] = pixels(image, declared, str(root / name))
    return out


def _empty(count: int, declared: Images) -> Pixels:
    try:
        return scratch((count, declared.channels, *declared.size), np.uint8)
    except (MemoryError, ValueError, ArtifactError) as error:
        height, width = declared.size
        raise ConfigError(
            f"{count:,} images of {height} x {width} pixels do not fit into memory; declare a smaller size."
        ) from error


def from_pictures(pictures: Iterator[Any], count: int, declared: Images, origin: str) -> Pixels:
    """Pictures in memory (Pillow images) as an array.

    Raises:
        ConfigError: one of them is not a picture, or cannot be decoded.
    """
    out = _empty(count, declared)
    for row in range(count):
        out[row] = pixels(next_picture(pictures, row, origin), declared, f"Image {row} (from 0) of {origin}")
    return out


def next_picture(pictures: Iterator[Any], row: int, origin: str) -> Any:
    """The next picture, which may be decoded only now.

    Raises:
        ConfigError: it is not a picture, or cannot be decoded.
    """
    pillow = _pillow()
    try:
        with _quiet():
            picture = next(pictures)
    except pillow.DecompressionBombError as error:
        raise ConfigError(_too_large(f"Image {row} (from 0) of {origin}")) from error
    except _UNREADABLE as error:
        raise ConfigError(f"Image {row} (from 0) of {origin} cannot be decoded; mend it or leave it out.") from error
    if not hasattr(picture, "convert"):
        raise ConfigError(
            f"Expected images in {origin}, got {type(picture).__name__} as number {row} (from 0); leave it out, or "
            "declare arrays."
        )
    return picture


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """An image file, not yet decoded, of a size that is safe to decode.

    Raises:
        ArtifactError: it is not an image, or too large.
    """
    pillow = _pillow()
    with _quiet(), opened_file(path) as stream:
        try:
            image = pillow.open(stream, formats=_FORMATS)
        except pillow.DecompressionBombError as error:
            raise ArtifactError(_too_large(path)) from error
        except _UNREADABLE as error:
            raise ArtifactError(f"{path} is not a readable image; mend it, or take it out of the folder.") from error
        with image:
            _check_pixels(image, path)
            yield image


def of_bytes(data: bytes, origin: str, formats: Sequence[str], most: int) -> Any:
    """An image in memory, not yet decoded, of a format and a size that are welcome.

    Raises:
        ArtifactError: it is not an image, or too large.
    """
    pillow = _pillow()
    with _quiet():
        try:
            image = pillow.open(io.BytesIO(data), formats=formats)
        except pillow.DecompressionBombError as error:
            raise ArtifactError(_too_large(origin, most)) from error
        except _UNREADABLE as error:
            raise ArtifactError(f"{origin} is not a readable image in {' or '.join(formats)}; mend it.") from error
        _check_pixels(image, origin, most)
        return image


def _check_pixels(image: Any, origin: object, most: int = _MOST_PIXELS) -> None:
    if image.width * image.height > most:
        raise ArtifactError(_too_large(origin, most))


def _too_large(origin: object, most: int = _MOST_PIXELS) -> str:
    return f"{origin} claims more than {most:,} pixels; shrink it, or leave it out."


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    # Pillow warns of odd metadata and large images; the former does not matter, the latter are refused.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _pillow() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ConfigError("Reading images needs Pillow; install it with: pip install 'mithridate[data]'") from error
    return Image


def pixels(image: Any, declared: Images, origin: str) -> Pixels:
    """One picture as channels x height x width: upright, grey or RGB, stretched by the bilinear filter.

    Raises:
        ArtifactError: it cannot be decoded, is too large, or has more than 8 bits a channel.
    """
    pillow = _pillow()
    from PIL import ImageOps

    height, width = declared.size
    _check_pixels(image, origin)
    if image.mode.startswith(("I", "F")):
        raise ArtifactError(f"{origin} has more than 8 bits per channel; save it with 8 bits.")
    try:
        with _quiet():
            upright = ImageOps.exif_transpose(image)
            plain = upright.convert("L" if declared.channels == 1 else "RGB")
            sized = plain.resize((width, height), pillow.Resampling.BILINEAR)
    except pillow.DecompressionBombError as error:
        raise ArtifactError(_too_large(origin)) from error
    except _UNREADABLE as error:
        raise ArtifactError(f"{origin} is a broken image; mend it, or take it out.") from error
    array = np.asarray(sized, dtype=np.uint8)
    return array[None] if declared.channels == 1 else np.moveaxis(array, -1, 0)


def of_arrays(x: npt.NDArray[Any], declared: Images) -> Pixels:
    """Images that are arrays already: 8 bits and of the declared size; missing or last channels are moved into place.

    Raises:
        ConfigError: they are something else.
    """
    shape = (declared.channels, *declared.size)
    found = channels_first(x, shape) if x.dtype == np.uint8 else None
    if found is None:
        raise ConfigError(
            f"Images are declared as 8-bit arrays of shape {shape} each, got {x.dtype} of shape {x.shape[1:]}; declare "
            "another size, or arrays."
        )
    return found


def channels_first(x: npt.NDArray[Any], shape: tuple[int, int, int]) -> npt.NDArray[Any] | None:
    """Images as [n, channels, height, width], None where they have another shape."""
    channels, *size = shape
    if x.shape[1:] == shape:
        return x
    if channels == 1 and x.shape[1:] == (*size,):
        return x[:, None]
    return moved_to_front(x) if x.shape[1:] == (*size, channels) else None


def moved_to_front(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Images whose channels come last, with their channels first."""
    return made(x, lambda some: np.moveaxis(some, -1, 1))

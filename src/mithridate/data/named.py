"""Well-known data sets by name: digits, MNIST, Fashion-MNIST, CIFAR-10.

They are found in a folder of the user's, or downloaded once. Whichever way the files came and however they are packed,
what is returned has the checksums of what was published: `mnist` is MNIST.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate._io.artifacts import read_npz
from mithridate._io.files import PathLike, cache_folder
from mithridate.data import published_files
from mithridate.data.declarations import Arrays
from mithridate.data.examples import Examples
from mithridate.data.images import channels_first
from mithridate.data.published_files import DownloadError, Progress, PublishedFile, fetch
from mithridate.errors import ArtifactError, ConfigError

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Split = tuple[Pixels, Labels]
# Inputs and labels of a part as some file holds them, before they are checked and brought into one shape.
RawSplit = tuple[npt.NDArray[Any], npt.NDArray[Any]]
FileLayout = Callable[[Path, "Published"], tuple[RawSplit, RawSplit] | None]

NAMES = ("digits", "mnist", "fashion-mnist", "cifar10")
DIGITS_TEST = 400


@dataclass(frozen=True)
class Part:
    """What was published as one part of a data set.

    Attributes:
        examples: their number.
        images: SHA-256 of all pixels, in the order image, channel, row, column.
        labels: SHA-256 of all labels, a byte each.
    """

    examples: int
    images: str
    labels: str


@dataclass(frozen=True)
class Published:
    """What is known beforehand about a data set.

    Attributes:
        name: of the data set.
        shape: of an image: channels, height, width.
        train: the checksums of the training part.
        test: the checksums of the test part.
        class_names: what the labels stand for.
        folders: where its files may lie, below the folder that the user names.
        layouts: how its files may be packed.
        hosts: where the files are offered.
        files: what is downloaded.
        note: what else to say to somebody who looks for the files.
    """

    name: str
    shape: tuple[int, int, int]
    train: Part
    test: Part
    class_names: tuple[str, ...]
    folders: tuple[str, ...]
    layouts: tuple[FileLayout, ...]
    hosts: tuple[str, ...]
    files: tuple[PublishedFile, ...]
    note: str = ""

    @property
    def limit(self) -> int:
        """No file of this data set unpacks into more bytes."""
        return max(self.train.examples, self.test.examples) * (1 + int(np.prod(self.shape)))


def load_named(
    name: str, *, data_dir: PathLike | None = None, download: bool = True, progress: Progress | None = None
) -> tuple[Examples, Examples]:
    """The training part and the test part of a well-known data set: 8-bit images, channels first, and labels.

    `digits` comes with scikit-learn: 8 x 8 images whose values 0 to 16 are scaled to 0 to 255 by a constant; the last
    400 are the test part. The others are looked for in `data_dir`, else in the folder that the environment variable
    `MITHRIDATE_DATA` names, else in the cache; last they are downloaded into the cache.

    Guarantee: images and labels have the SHA-256 of what was published (`digits`: they are what scikit-learn gives).

    Args:
        name: one of `digits`, `mnist`, `fashion-mnist`, `cifar10`.
        data_dir: a folder with the files as they are published, or with `NAME.npz`.
        download: whether files that are not found may be downloaded.
        progress: called with the number of bytes downloaded and their total.

    Raises:
        ConfigError: the name is unknown, or scikit-learn is missing.
        ArtifactError: the files are damaged or not the published ones, or they are missing and cannot be downloaded.
    """
    _validate.one_of(NAMES, name=name)
    if name == "digits":
        return _digits()
    published = PUBLISHED[name]
    folder = _data_folder(data_dir)
    found = None if folder is None else _look_below(folder, published)
    if found is None:
        found = _from_cache(published, folder, download=download, progress=progress)
    return _examples(found[0], published.class_names), _examples(found[1], published.class_names)


def _examples(split: Split, class_names: tuple[str, ...]) -> Examples:
    return Examples(*split, class_names, declaration=Arrays(classes=class_names))


def _digits() -> tuple[Examples, Examples]:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise ConfigError(
            "The digits come with scikit-learn; install it with: pip install 'mithridate[train]'"
        ) from error
    images, labels = load_digits(return_X_y=True)
    x = np.rint(np.asarray(images) * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    y = np.asarray(labels, dtype=np.int64)
    whole = _examples((x, y), tuple("0123456789"))
    return whole.part(slice(-DIGITS_TEST)), whole.part(slice(-DIGITS_TEST, None))


# --- where files are ------------------------------------------------------------------------------------------------


def _data_folder(data_dir: PathLike | None) -> Path | None:
    """The folder that the user named, by argument or by environment."""
    named = data_dir if data_dir is not None else os.environ.get("MITHRIDATE_DATA") or None
    if named is None:
        return None
    folder = Path(named)
    if not folder.is_dir():
        given = "--data-dir" if data_dir is not None else "MITHRIDATE_DATA"
        raise ArtifactError(f"There is no folder {folder}, which {given} names; check the path.")
    return folder


def _look_below(folder: Path, published: Published) -> tuple[Split, Split] | None:
    """The data set from the first place below a folder that has all its files, None where none has."""
    for place in (*published.folders, "."):
        for layout in published.layouts:
            if (raw := layout(folder / place, published)) is not None:
                parts = zip(raw, (published.train, published.test), strict=True)
                train, test = (_checked(found, part, folder / place, published) for found, part in parts)
                return train, test
    return None


def _from_cache(
    published: Published, looked: Path | None, *, download: bool, progress: Progress | None
) -> tuple[Split, Split]:
    """The data set from its own folder in the cache, downloaded where it is not there yet."""
    cache = cache_folder()
    if cache is None:
        raise _missing(published, looked, "there is no cache to keep a download in (MITHRIDATE_CACHE is off)")
    folder = cache / "data" / published.name
    absent = [file for file in published.files if not (folder / file.name).is_file()]
    if absent and not download:
        raise _missing(published, looked, "it is not in the cache, and downloading is switched off")
    if absent:
        try:
            fetch(absent, published.hosts, folder, progress)
        except DownloadError as error:
            raise _missing(published, looked, str(error)) from error
    with contextlib.suppress(ArtifactError):
        if (found := _look_below(folder, published)) is not None:
            return found
    for file in published.files:
        with contextlib.suppress(OSError):
            (folder / file.name).unlink(missing_ok=True)
    raise ArtifactError(
        f"The cached files of {published.name} in {folder} were damaged and have been deleted; "
        "run the same again to download them anew."
    )


def _missing(published: Published, looked: Path | None, reason: str) -> ArtifactError:
    files = ", ".join(file.name for file in published.files) + published.note
    where = "" if looked is None else f" is not in {looked}, and"
    return ArtifactError(
        f"{published.name}{where} cannot be downloaded: {reason}. Put the files {files} into a folder and give it with "
        "--data-dir or MITHRIDATE_DATA, or connect to the network."
    )


# --- how files are packed -------------------------------------------------------------------------------------------

_IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_CIFAR_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_CIFAR_TEST = ("test_batch",)
_CIFAR_FILES = _CIFAR_TRAIN + _CIFAR_TEST
_CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
_NPZ_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def _idx(folder: Path, published: Published) -> tuple[RawSplit, RawSplit] | None:
    """Four idx files, compressed or not."""
    either = ((folder / f"{name}.gz", folder / name) for name in _IDX_FILES)
    paths = [packed if packed.is_file() else plain for packed, plain in either]
    if not all(path.is_file() for path in paths):
        return None
    x_train, y_train, x_test, y_test = (published_files.read_idx(path, limit=published.limit) for path in paths)
    return (x_train, y_train), (x_test, y_test)


def _npz(folder: Path, published: Published) -> tuple[RawSplit, RawSplit] | None:
    """One `.npz` with x_train, y_train, x_test and y_test, as Keras keeps MNIST."""
    path = folder / f"{published.name}.npz"
    if not path.is_file():
        return None
    arrays = read_npz(path, f"arrays {', '.join(_NPZ_ARRAYS)}")
    if missing := [name for name in _NPZ_ARRAYS if name not in arrays]:
        raise ArtifactError(f"{path} lacks the arrays {', '.join(missing)}; save {published.name} under these names.")
    x_train, y_train, x_test, y_test = (arrays[name] for name in _NPZ_ARRAYS)
    return (x_train, y_train), (x_test, y_test)


def _cifar_batches(folder: Path, published: Published) -> tuple[RawSplit, RawSplit] | None:
    """The binary batches, `data_batch_1.bin` to `test_batch.bin`."""
    paths = {name: folder / f"{name}.bin" for name in _CIFAR_FILES}
    if not all(path.is_file() for path in paths.values()):
        return None
    return _joined({name: published_files.read_cifar(path, limit=published.limit) for name, path in paths.items()})


def _cifar_archive(folder: Path, published: Published) -> tuple[RawSplit, RawSplit] | None:
    """The archive of the binary batches."""
    path = folder / _CIFAR_ARCHIVE
    if not path.is_file():
        return None
    wanted = [f"{name}.bin" for name in _CIFAR_FILES]
    batches = published_files.read_cifar_archive(path, wanted, limit=published.limit)
    return _joined({name: batches[f"{name}.bin"] for name in _CIFAR_FILES})


def _joined(batches: Mapping[str, RawSplit]) -> tuple[RawSplit, RawSplit]:
    def part(names: tuple[str, ...]) -> RawSplit:
        images, labels = zip(*(batches[name] for name in names), strict=True)
        return np.concatenate(images), np.concatenate(labels)

    return part(_CIFAR_TRAIN), part(_CIFAR_TEST)


# --- what they must hold --------------------------------------------------------------------------------------------


def _checked(raw: RawSplit, part: Part, folder: Path, published: Published) -> Split:
    """Images and labels in one shape; anything but what was published is refused."""
    images, labels = channels_first(raw[0], published.shape), raw[1].reshape(-1)
    right = (
        images is not None
        and images.dtype == np.uint8
        and len(images) == len(labels) == part.examples
        and labels.dtype.kind in "iu"
        and 0 <= labels.min() <= labels.max() <= 255
        and _sha256(images) == part.images
        and _sha256(labels.astype(np.uint8)) == part.labels
    )
    if not right or images is None:
        raise ArtifactError(
            f"The files in {folder} are not {published.name} as it was published; replace them, or train on your own "
            "data by its path instead of a name."
        )
    return np.ascontiguousarray(images), labels.astype(np.int64)


def _sha256(array: npt.NDArray[np.uint8]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _listed(files: str) -> tuple[PublishedFile, ...]:
    """Files from lines of a name, a size and a checksum."""
    rows = (line.split() for line in files.strip().splitlines())
    return tuple(PublishedFile(name, int(size), sha256) for name, size, sha256 in rows)


_FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

# Checksums of files as public projects that download them state them. Those of MNIST and Fashion-MNIST were compared
# with the files themselves; of CIFAR-10 the batches were, and not the archive. Checksums of parts were computed from
# these files.
PUBLISHED: dict[str, Published] = {
    "mnist": Published(
        name="mnist",
        shape=(1, 28, 28),
        train=Part(
            60_000,
            images="741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            labels="1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
        ),
        test=Part(
            10_000,
            images="6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
            labels="ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
        ),
        class_names=tuple("0123456789"),
        folders=("mnist", "MNIST/raw"),
        layouts=(_idx, _npz),
        hosts=(
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
        ),
        files=_listed("""
            train-images-idx3-ubyte.gz   9912422 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609
            train-labels-idx1-ubyte.gz     28881 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c
            t10k-images-idx3-ubyte.gz    1648877 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6
            t10k-labels-idx1-ubyte.gz       4542 f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6
        """),
    ),
    "fashion-mnist": Published(
        name="fashion-mnist",
        shape=(1, 28, 28),
        train=Part(
            60_000,
            images="2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
            labels="657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
        ),
        test=Part(
            10_000,
            images="c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
            labels="3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
        ),
        class_names=_FASHION,
        folders=("fashion-mnist", "fashion_mnist", "FashionMNIST/raw"),
        layouts=(_idx, _npz),
        hosts=(
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        files=_listed("""
            train-images-idx3-ubyte.gz  26421880 3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84
            train-labels-idx1-ubyte.gz     29515 a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845
            t10k-images-idx3-ubyte.gz    4422102 346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073
            t10k-labels-idx1-ubyte.gz       5148 67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5
        """),
    ),
    "cifar10": Published(
        name="cifar10",
        shape=published_files.CIFAR_SHAPE,
        train=Part(
            50_000,
            images="9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
            labels="2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        ),
        test=Part(
            10_000,
            images="177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
            labels="cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        ),
        class_names=_CIFAR,
        folders=("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"),
        layouts=(_cifar_batches, _cifar_archive, _npz),
        hosts=("https://www.cs.toronto.edu/~kriz/",),
        files=_listed(f"{_CIFAR_ARCHIVE} 170052171 c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
        note=" (not the Python version: it is pickled, and pickles are never loaded)",
    ),
}

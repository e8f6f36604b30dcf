"""Parts of a data set that are decided by what each example is, never by where it stands.

An attacker who inserts or deletes an example must not move any other: whether an example is held out, and in which part
of the training set it is, follows from a hash of that example alone. Equal examples are in the same part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate._io.pieces import pieces
from mithridate.core.provenance import contents
from mithridate.data.examples import Array, Examples
from mithridate.data.units import Units, name_hash
from mithridate.errors import ConfigError

Hashes = npt.NDArray[np.uint64]
IndexArray = npt.NDArray[np.int64]

# Constants that everybody knows: parts need to be fixed, not secret. Changing one changes all parts.
_KEY = b"mithridate content hash 1"
_HOLDOUT_KEY = b"mithridate holdout"
_BYTES = 32  # nobody finds two examples with one hash
_EXACT = 2**53


def split_by_hash(examples: Examples, share: float) -> tuple[Examples, Examples]:
    """The examples to train on, and those that are held out to be voted on.

    Guarantee:
        Whether an example is held out depends on the values of its own inputs and on no other example, nor on the type
        of the array that holds them all. So whoever adds or removes r examples changes the training part by at most r,
        which a split by position would not ensure. Exact copies of an example are on the same side: what is voted on
        was not trained on (but for copies in two units). An example that is replaced may change sides; for the training
        part that is then one removal or one addition, not a replacement. Where examples belong to units, the hash of
        the unit's name decides: no unit is on both sides, and a unit that is changed under its name stays on its side.

    Args:
        examples: what was read.
        share: how much of it is held out, on average, above 0 and below 1.

    Raises:
        ConfigError: the share is not what it should be, or one of the parts would be empty.
    """
    _validate.number_in(0, 1, low_open=True, high_open=True, holdout=share)
    units, out = examples.units, is_held_out(examples, share)
    if out.all() or not out.any():
        number = f"{len(out)} examples" if units is None else units.unit.counted(len(units.names))
        empty = f"Holding out {share:g} of {number} leaves one part empty"
        if units is not None:
            raise ConfigError(f"{empty}; name a test file, or hold out another share.")
        if len(out) > 1 and len(np.unique(_short_hashes(examples.x, _HOLDOUT_KEY))) < 2:
            raise ConfigError(
                f"{empty}, since all inputs look alike; check the data (constant or clipped columns), or name a test "
                "file."
            )
        raise ConfigError(f"{empty}; name a test file, or hold out another share.")
    return examples.part(~out), examples.part(out)


def is_held_out(examples: Examples, share: float) -> npt.NDArray[np.bool_]:
    """Which examples such a share holds out: a function of the input of each, or of the name of its unit."""
    units = examples.units
    return (_short_hashes(examples.x, _HOLDOUT_KEY) if units is None else _of_names(units)) * 2.0**-64 < share


def _of_names(units: Units, key: bytes = _HOLDOUT_KEY) -> Hashes:
    """A hash of the name of the unit of every example, of 64 bits, with no relation to that of its part."""
    hashes = [hashlib.blake2b(name, digest_size=8, key=key).digest() for name in map(name_hash, units.names)]
    return np.frombuffer(b"".join(hashes), dtype="<u8")[units.of_example]


def folds_by_hash(x: Array, count: int, seed: int) -> IndexArray:
    """The number of the fold of every input, from 0 to `count` - 1: of a trusted set, to train and to score apart.

    Guarantee: it is a function of the input's own values, `count` and `seed`. Exact copies are in one fold.

    >>> folds = folds_by_hash(np.array([[1.0], [2.0], [1.0], [3.0]]), 3, seed=0)
    >>> bool(folds[0] == folds[2]), bool((folds < 3).all())
    (True, True)
    """
    key = hashlib.blake2b(f"mithridate folds {seed}".encode(), digest_size=32).digest()
    return (_short_hashes(x, key) % np.uint64(count)).astype(np.int64)


def folds_of(examples: Examples, count: int, seed: int) -> IndexArray:
    """The same for examples that may have units: then it is a function of the name of each, and units stay whole."""
    if examples.units is None:
        return folds_by_hash(examples.x, count, seed)
    key = hashlib.blake2b(f"mithridate folds of units {seed}".encode(), digest_size=32).digest()
    return (_of_names(examples.units, key) % np.uint64(count)).astype(np.int64)


def shared_with(x: Array, other: Array) -> npt.NDArray[np.bool_]:
    """Which inputs are among some others, whatever their labels and however the two arrays hold their numbers.

    >>> shared_with(np.array([[1, 2], [3, 4]]), np.array([[3.0, 4.0], [5.0, 6.0]])).tolist()
    [False, True]
    """
    hashes = list(_input_hashes(x, _BYTES, _HOLDOUT_KEY))
    own = set(hashes)  # of those there are the fewer, usually
    shared = {each for each in _input_hashes(other, _BYTES, _HOLDOUT_KEY) if each in own}
    return np.array([each in shared for each in hashes], dtype=np.bool_)


def _short_hashes(x: Array, key: bytes) -> Hashes:
    """A hash of the values of every input, of 64 bits."""
    digests = bytearray()
    for each in _input_hashes(x, 8, key):
        digests += each
    return np.frombuffer(digests, dtype="<u8")


def _input_hashes(x: Array, size: int, key: bytes) -> Iterator[bytes]:
    """A hash of the values of every input, of so many bytes."""
    for some in pieces(x):
        for each in contents(some, "<f8", zero=0.0):
            yield hashlib.blake2b(each, digest_size=size, key=key).digest()


def content_hashes(x: Array, y: npt.NDArray[np.int64]) -> Hashes:
    """A hash of the content of every example, 256 bits as examples x 4.

    Guarantee: it is a function of the example's own input and label, and of the kind (8-bit numbers, other numbers,
    text) and shape of the inputs, which are those of the data set. Numbers count by their value and texts without the
    padding that numpy gives them: how an array holds them may depend on other examples. Examples of different content
    have different hashes, as far as blake2b has no collisions.

    Args:
        x: inputs as they were given, one entry per example.
        y: labels.

    Raises:
        ConfigError: a whole number is too large to be told from its neighbours in double precision.

    >>> hashes = content_hashes(np.array([[1, 2], [3, 4], [1, 2]]), np.array([0, 1, 0]))
    >>> bool((hashes[0] == hashes[2]).all()), bool((hashes[0] == hashes[1]).any())
    (True, False)
    """
    if x.dtype.kind in "iu" and x.size and (x.max() > _EXACT or x.min() < -_EXACT):
        raise ConfigError("Expected whole numbers up to 2^53, which double precision holds exactly; scale the inputs.")
    kind = "text" if x.dtype.kind == "U" else "|u1" if x.dtype == np.uint8 else "numbers"
    start = hashlib.blake2b(f"{kind} {x.shape[1:]}".encode(), digest_size=_BYTES, key=_KEY)
    digests = bytearray()
    each = (content for some in pieces(x) for content in contents(some, "|u1" if kind == "|u1" else "<f8"))
    for content, label in zip(each, y.tolist(), strict=True):
        one = start.copy()
        one.update(label.to_bytes(8, "little"))
        one.update(content)
        digests += one.digest()
    return np.frombuffer(digests, dtype="<u8").reshape(len(x), -1).astype(np.uint64, copy=False)


def by_unit(examples: Examples, most: int) -> Examples:
    """The examples of every unit side by side, in the order of their own hashes; of each unit so many at most.

    Guarantee: which examples of a unit are left, and in which order, is a function of the examples of that unit, of
    `most`, and of the kind and shape of the inputs (see `content_hashes`). Units keep the order of their first
    examples, so that units of one example each change nothing.
    """
    units, y = examples.units, examples.y
    assert units is not None
    assert y is not None
    numbers = units.of_example
    if units.sizes.max() == 1:
        return examples
    hashes = content_hashes(examples.x, y)
    order = np.lexsort((*hashes.T[::-1], numbers))
    place = np.arange(len(order)) - np.searchsorted(numbers[order], numbers[order])
    chosen = order[place < most]
    left = examples.part(chosen)
    assert left.units is not None
    return replace(left, units=replace(units, of_example=numbers[chosen]))


def unit_hashes(units: Units, contents: Hashes) -> Hashes:
    """For every example, the hash of its unit's name and, behind it, that of its content; see `parts`.

    The first decides on the part, both on the order within it.
    """
    return np.concatenate([units.hashes[units.of_example], contents], axis=1)


def name_hashes(names: list[str]) -> Hashes:
    """For examples of units of these names, what decides on the part of each; see `unit_hashes`."""
    return np.frombuffer(b"".join(map(name_hash, names)), dtype="<u8").reshape(len(names), -1).astype(np.uint64)


def canonical_order(hashes: Hashes) -> IndexArray:
    """Indices of all examples, sorted by their hashes: an order that is the same however the data was ordered.

    Examples with equal hashes are equal, so which of them comes first does not matter.
    """
    return np.lexsort(hashes.T[::-1])


def parts(hashes: Hashes, count: int) -> list[IndexArray]:
    """The indices of the examples of each of `count` parts, in their canonical order.

    Guarantee: the part of an example depends on its own content and on `count` only.

    >>> x, y = np.arange(40).reshape(20, 2), np.zeros(20, np.int64)
    >>> sorted(int(i) for part in parts(content_hashes(x, y), 3) for i in part) == list(range(20))
    True
    """
    order = canonical_order(hashes)
    number = (hashes[order, 0] % np.uint64(count)).astype(np.int64)
    by_part = np.argsort(number, kind="stable")
    ends = np.searchsorted(number[by_part], np.arange(1, count))
    return np.split(order[by_part], ends)

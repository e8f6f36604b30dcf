"""Where every random number of a run comes from: a root seed, an instance and a purpose, nothing else.

Each instance has a seed of its own, made from the root seed, and one stream per purpose (initial weights, batches,
noise, its part of the data), made from the seed of the instance. So no draw depends on the shard that an instance is
in, on the order in which instances are trained, on the worker, on a restart, or on how many models are in flight; and
who trains some of the instances needs the seeds of these alone.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

SEED_BYTES = 32
# The root seed of models that are functions of their data: everybody may know it.
PUBLIC_SEED = hashlib.blake2b(b"mithridate deterministic training 1", digest_size=SEED_BYTES).digest()

_KEY_BYTES = 16
# An instance and its seed.
_SEED_LINE = re.compile(rf"([0-9]{{1,15}}) ([0-9a-f]{{{2 * SEED_BYTES}}})")


def new_root_seed() -> bytes:
    """A root seed from the operating system's entropy: the attacker must not know it."""
    return secrets.token_bytes(SEED_BYTES)


def derived(secret: bytes, message: bytes, size: int) -> bytes:
    """So many bytes that belong to a message, and that look random to whoever lacks the secret.

    Guarantee: different (secret, message, size) give independent bytes, as far as blake2b is a random function.
    """
    return hashlib.blake2b(message, digest_size=size, key=secret).digest()


@dataclass(frozen=True, eq=False, repr=False)
class Seeds:
    """The seeds of the instances of a run: of all of them (`Seeds.of`), or of some and of no other (`only`).

    Guarantee: different (instance, purpose) give independent keys, as far as blake2b is a random function. Whoever
    holds the seeds of some instances learns nothing about those of others, nor about the root seed. Seeds that are
    restricted hold no other secrets, and give the same streams as those that they were taken from. Those that hold the
    root seed can be neither copied nor pickled, so no worker gets it by mistake; and no seed is ever shown.

    >>> seeds = Seeds.of(bytes(32))
    >>> seeds.key(0, "noise") == seeds.key(1, "noise")
    False
    >>> seeds.only([1, 2])
    Seeds(of 2 instances)
    """

    _root: bytes | None
    _own: Mapping[int, bytes]

    @classmethod
    def of(cls, root_seed: bytes) -> Seeds:
        """The seeds of all instances, each made when it is asked for."""
        if len(root_seed) != SEED_BYTES:  # an empty key would be no secret at all
            raise ValueError(f"a root seed has {SEED_BYTES} bytes, not {len(root_seed)}")
        return cls(root_seed, {})

    def only(self, instances: Iterable[int]) -> Seeds:
        """The seeds of these instances and nothing else, for whoever trains them.

        Raises:
            LookupError: one of them is not among these seeds.
        """
        return Seeds(None, {instance: self._seed(instance) for instance in instances})

    def to_lines(self) -> bytes:
        """What a private file of restricted seeds holds: an instance and its seed in each line.

        Raises:
            TypeError: these hold the root seed.
        """
        own: dict[int, bytes] = self.__getstate__()["_own"]
        return "".join(f"{instance} {seed.hex()}\n" for instance, seed in sorted(own.items())).encode()

    @classmethod
    def from_lines(cls, lines: bytes) -> Seeds:
        """Read what `to_lines` wrote.

        Raises:
            ValueError: it is something else.
        """
        pairs = [_SEED_LINE.fullmatch(line) for line in lines.decode("ascii", "replace").splitlines()]
        own = {int(pair[1]): bytes.fromhex(pair[2]) for pair in pairs if pair is not None}
        if not own or len(own) < len(pairs):
            raise ValueError("these are no seeds")
        return cls(None, own)

    @property
    def instances(self) -> frozenset[int]:
        """The instances of restricted seeds."""
        return frozenset(self._own)

    def key(self, instance: int, purpose: str) -> int:
        """128 bits that belong to one purpose of one instance.

        Raises:
            LookupError: the instance is not among these seeds.
        """
        return int.from_bytes(derived(self._seed(instance), purpose.encode(), _KEY_BYTES), "little")

    def generator(self, instance: int, purpose: str) -> np.random.Generator:
        """The stream of one purpose of one instance.

        SFC64 is the fastest of numpy's generators; its normals in single precision have tails to eight standard
        deviations, where `torch.randn` on a CPU ends at 5.8, which a run of a billion draws would notice. The noise of
        private training has another source (`kernels.normals`).

        Raises:
            LookupError: the instance is not among these seeds.
        """
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence(self.key(instance, purpose))))

    def _seed(self, instance: int) -> bytes:
        if self._root is not None:
            return derived(self._root, instance.to_bytes(8, "little"), SEED_BYTES)
        try:
            return self._own[instance]
        except KeyError:
            # No mistake of a user's: whoever trains an instance must have been handed its seed.
            raise LookupError(f"a bug in mithridate: {self!r} lacks the seed of instance {instance}") from None

    def __repr__(self) -> str:
        return "Seeds(of all instances)" if self._root is not None else f"Seeds(of {len(self._own)} instances)"

    def __getstate__(self) -> dict[str, Any]:
        if self._root is not None:
            raise TypeError("seeds that hold the root seed stay where they are; copy or send `only` those of some")
        return self.__dict__

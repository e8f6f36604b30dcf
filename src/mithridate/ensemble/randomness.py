"""Where every random number of a run comes from: a root seed, an instance and a purpose, nothing else.

Each instance owns one stream per purpose (initial weights, batches, noise, its part of the data), keyed by a
cryptographic hash of the three. So no draw depends on the shard that an instance is in, on the order in which instances
are trained, on the worker, on a restart, or on how many models are in flight.
"""

import hashlib
import secrets

import numpy as np

SEED_BYTES = 32
# The root seed of models that are functions of their data: everybody may know it.
PUBLIC_SEED = hashlib.blake2b(b"mithridate deterministic training 1", digest_size=SEED_BYTES).digest()


def new_root_seed() -> bytes:
    """A root seed from the operating system's entropy: the attacker must not know it."""
    return secrets.token_bytes(SEED_BYTES)


def key(root_seed: bytes, instance: int, purpose: str) -> int:
    """128 bits that belong to one purpose of one instance.

    Guarantee: different (instance, purpose) pairs give independent keys, as far as blake2b is a random function.

    >>> key(bytes(32), 0, "noise") == key(bytes(32), 1, "noise")
    False
    """
    message = instance.to_bytes(8, "little") + purpose.encode()
    return int.from_bytes(hashlib.blake2b(message, digest_size=16, key=root_seed).digest(), "little")


def generator(root_seed: bytes, instance: int, purpose: str) -> np.random.Generator:
    """The stream of one purpose of one instance.

    SFC64 is the fastest of numpy's generators; its normals in single precision have tails to eight standard deviations,
    where `torch.randn` on a CPU ends at 5.8, which a run of a billion draws would notice.
    """
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(key(root_seed, instance, purpose))))

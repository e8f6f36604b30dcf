"""Keys and streams: functions of (root seed, instance, purpose) and of nothing else."""

import hashlib
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mithridate.ensemble import randomness

SEED = bytes(range(32))
PURPOSES = ("initial weights", "batches", "noise")


@settings(max_examples=50)
@given(seed=st.binary(min_size=32, max_size=32), instance=st.integers(0, 2**63), purpose=st.sampled_from(PURPOSES))
def test_keys_are_the_keyed_hash_of_instance_and_purpose(seed: bytes, instance: int, purpose: str) -> None:
    # A second computation: what was drawn once must be drawn again by every later version, or no run could be resumed.
    digest = hashlib.blake2b(key=seed, digest_size=16)
    digest.update(instance.to_bytes(8, "little"))
    digest.update(purpose.encode())
    assert randomness.key(seed, instance, purpose) == sum(
        byte << (8 * place) for place, byte in enumerate(digest.digest())
    )


def test_keys_of_all_instances_purposes_and_seeds_differ() -> None:
    seeds = (SEED, bytes(32), bytes(31) + b"\x01")
    keys = {
        randomness.key(seed, instance, purpose) for seed in seeds for instance in range(500) for purpose in PURPOSES
    }
    assert len(keys) == len(seeds) * 500 * len(PURPOSES)
    assert max(keys) >= 2**120  # all 128 bits are in use
    assert max(keys) < 2**128


def test_streams_are_the_same_in_another_process() -> None:
    code = (
        "from mithridate.ensemble import randomness;"
        "print(randomness.generator(bytes(range(32)), 7, 'noise').integers(2**62, size=3).tolist())"
    )
    # Another hash seed: a key made with Python's own `hash` would change.
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    here = randomness.generator(SEED, 7, "noise").integers(2**62, size=3).tolist()
    assert done.stdout.strip() == str(here)


def test_a_stream_starts_anew_whenever_it_is_asked_for() -> None:
    first = randomness.generator(SEED, 3, "noise").standard_normal(100)
    randomness.generator(SEED, 4, "noise").standard_normal(17)
    assert np.array_equal(randomness.generator(SEED, 3, "noise").standard_normal(100), first)


@pytest.mark.parametrize(
    "pair",
    [
        ((SEED, 0, "noise"), (SEED, 0, "batches")),
        ((SEED, 0, "noise"), (SEED, 0, "initial weights")),
        ((SEED, 0, "noise"), (SEED, 1, "noise")),
        ((SEED, 1, "noise"), (SEED, 2, "noise")),
        ((SEED, 0, "noise"), (bytes(32), 0, "noise")),
    ],
    ids=["purpose", "other purpose", "instance", "next instance", "seed"],
)
def test_streams_are_uncorrelated(pair: tuple[tuple[bytes, int, str], tuple[bytes, int, str]]) -> None:
    count = 100_000
    one, two = (randomness.generator(*which).standard_normal(count) for which in pair)
    # Under independence sqrt(n) times the correlation is standard normal: beyond 6.5 with probability 8e-11. Nine lags
    # of five pairs: false alarms below 4e-9. A stream shifted by up to four places is found, too.
    for lag in range(-4, 5):
        correlation = float(np.mean(one[max(0, lag) : count + min(0, lag)] * two[max(0, -lag) : count - max(0, lag)]))
        assert abs(correlation) * math.sqrt(count) < 6.5


def test_normals_reach_beyond_six_standard_deviations() -> None:
    # What `generator` promises of its single-precision normals. P(|z| > 5.8) = 6.6e-9, so 2^23 draws do not show it;
    # but the law of the largest of n = 2^23 draws does: P(max |z| < 4.7) = exp(-n 2.6e-6) < 1e-9, and beyond 6.9 it is
    # with probability n 5.2e-12 < 5e-5 (a constant seed: no chance is left).
    normals = randomness.generator(SEED, 0, "noise").standard_normal(2**23, dtype=np.float32)
    assert 4.7 < float(np.abs(normals).max()) < 6.9
    # Kurtosis 3, standard error sqrt(24 / n) = 0.0017: six of them.
    assert abs(float(np.mean(normals.astype(np.float64) ** 4)) - 3.0) < 6 * math.sqrt(96 / len(normals))


def test_new_root_seeds_are_32_bytes_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = {randomness.new_root_seed() for _ in range(1000)}
    assert len(seeds) == 1000
    assert {len(seed) for seed in seeds} == {32}
    # Ones and zeros alike: 256,000 fair bits, off by 6.5 standard deviations with probability 8e-11.
    ones = sum(int.from_bytes(seed, "little").bit_count() for seed in seeds)
    assert abs(ones - 128_000) < 6.5 * math.sqrt(256_000) / 2
    # Not a function of numpy's or Python's seeded generators.
    np.random.seed(0)  # noqa: NPY002
    first = randomness.new_root_seed()
    np.random.seed(0)  # noqa: NPY002
    assert randomness.new_root_seed() != first

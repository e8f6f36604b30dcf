"""Keys and streams: functions of (root seed, instance, purpose) and of nothing else; some seeds show no others."""

import copy
import hashlib
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mithridate.training import randomness
from mithridate.training.randomness import PUBLIC_SEED, Seeds

SEED = bytes(range(32))
SEEDS = Seeds.of(SEED)
PURPOSES = ("initial weights", "batches", "noise")


def seed_of(instance: int, root_seed: bytes = SEED) -> bytes:
    """The secret of one instance, by a second computation."""
    digest = hashlib.blake2b(key=root_seed, digest_size=32)
    digest.update(bytes(instance >> 8 * place & 255 for place in range(8)))
    return digest.digest()


# --- keys -------------------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(seed=st.binary(min_size=32, max_size=32), instance=st.integers(0, 2**63), purpose=st.sampled_from(PURPOSES))
def test_keys_are_a_keyed_hash_of_the_purpose_by_one_of_the_instance(seed: bytes, instance: int, purpose: str) -> None:
    # A second computation: what was drawn once must be drawn again by every later version, or no run could be resumed.
    digest = hashlib.blake2b(key=seed_of(instance, seed), digest_size=16)
    digest.update(purpose.encode())
    expected = sum(byte << (8 * place) for place, byte in enumerate(digest.digest()))
    assert Seeds.of(seed).key(instance, purpose) == expected
    assert Seeds.of(seed).only([instance]).key(instance, purpose) == expected


def test_keys_of_all_instances_purposes_and_seeds_differ() -> None:
    roots = (SEED, bytes(32), bytes(31) + b"\x01")
    keys = {Seeds.of(root).key(instance, purpose) for root in roots for instance in range(500) for purpose in PURPOSES}
    assert len(keys) == len(roots) * 500 * len(PURPOSES)
    assert max(keys) >= 2**120  # all 128 bits are in use
    assert max(keys) < 2**128


def one_bit_changed(root: bytes, number: int) -> bytes:
    return (int.from_bytes(root, "little") ^ 1 << number % 256).to_bytes(32, "little")


@pytest.mark.parametrize(
    "other",
    [
        lambda at: SEEDS.key(at + 1, "noise"),
        lambda at: SEEDS.key(at ^ 1 << 40, "noise"),
        lambda at: SEEDS.key(at, "batches"),
        lambda at: SEEDS.key(at, "noisf"),
        lambda at: Seeds.of(one_bit_changed(SEED, at)).key(at, "noise"),
        lambda at: int.from_bytes(seed_of(at)[:16], "little"),
    ],
    ids=["next instance", "far instance", "purpose", "one bit of the purpose", "one bit of the seed", "its own seed"],
)
def test_whatever_changes_every_bit_of_a_key_changes_with_probability_one_half(other: Callable[[int], int]) -> None:
    count = 2000
    changed = [SEEDS.key(at, "noise") ^ other(at) for at in range(count)]
    by_place = np.array([[bits >> place & 1 for place in range(128)] for bits in changed])
    # Fair bits: 6.5 standard deviations are exceeded with probability 8e-11, at 128 places of 6 pairs below 7e-8.
    assert abs(int(by_place.sum()) - 64 * count) < 6.5 * math.sqrt(128 * count) / 2
    assert np.abs(by_place.sum(axis=0) - count / 2).max() < 6.5 * math.sqrt(count) / 2


# --- the seeds of some instances --------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(instances=st.sets(st.integers(0, 2**63), min_size=1, max_size=5), purpose=st.sampled_from(PURPOSES))
def test_restricted_seeds_give_the_same_streams_wherever_they_are_sent(instances: set[int], purpose: str) -> None:
    some = SEEDS.only(instances)
    for seeds in (some, some.only(instances), copy.copy(some), copy.deepcopy(some), pickle.loads(pickle.dumps(some))):
        for instance in instances:
            drawn = seeds.generator(instance, purpose).integers(2**62, size=3)
            assert np.array_equal(drawn, SEEDS.generator(instance, purpose).integers(2**62, size=3))


def test_what_is_sent_holds_the_seeds_of_its_instances_and_no_other_secret() -> None:
    some = SEEDS.only(range(20)).only(range(3, 6))
    for seeds in (some, copy.copy(some), copy.deepcopy(some)):
        sent = pickle.dumps(seeds)
        # What is there is found, so what is not found is not there.
        assert [instance for instance in range(1000) if seed_of(instance) in sent] == [3, 4, 5]
        assert SEED not in sent
        assert len(sent) < 3 * 32 + 200  # no room for anything else


def test_restricted_seeds_come_back_from_lines() -> None:
    some = SEEDS.only([7, 3])
    lines = some.to_lines()
    assert lines == f"3 {seed_of(3).hex()}\n7 {seed_of(7).hex()}\n".encode()
    again = Seeds.from_lines(lines)
    assert again.instances == {3, 7}
    assert again.key(7, "noise") == SEEDS.key(7, "noise")
    with pytest.raises(TypeError, match="root seed"):
        SEEDS.to_lines()


@pytest.mark.parametrize("lines", [b"", b"3", b"3 00", b"x " + b"00" * 32, b"3 " + b"00" * 32 + b"\n3 " + b"11" * 32])
def test_other_lines_are_no_seeds(lines: bytes) -> None:
    with pytest.raises(ValueError, match="no seeds"):
        Seeds.from_lines(lines)


def test_seeds_that_are_lacking_are_a_bug_that_is_named() -> None:
    some = SEEDS.only(range(3, 6))
    for ask in (lambda: some.key(2, "noise"), lambda: some.generator(2, "noise"), lambda: some.only([3, 2])):
        with pytest.raises(LookupError, match=r"bug in mithridate.*3 instances.*lacks the seed of instance 2"):
            ask()
    with pytest.raises(LookupError, match="instance 0"):
        SEEDS.only([]).key(0, "noise")


@pytest.mark.parametrize("spread", [pickle.dumps, copy.copy, copy.deepcopy])
def test_seeds_that_hold_the_root_seed_are_not_sent(spread: Callable[[Seeds], object]) -> None:
    with pytest.raises(TypeError, match=r"root seed.*`only`"):
        spread(SEEDS)


def test_no_secret_is_shown() -> None:
    assert repr(SEEDS) == str(SEEDS) == "Seeds(of all instances)"
    assert repr(SEEDS.only([4, 9])) == str(SEEDS.only([4, 9])) == "Seeds(of 2 instances)"


def test_seeds_stay_what_they_are() -> None:
    with pytest.raises(FrozenInstanceError):
        Seeds.of(SEED)._root = bytes(32)  # type: ignore[misc]


@pytest.mark.parametrize("length", [0, 16, 33])
def test_a_root_seed_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"32 bytes, not {length}"):
        Seeds.of(bytes(length))


# --- streams ----------------------------------------------------------------------------------------------------------


def test_streams_are_the_same_in_another_process() -> None:
    code = (
        "from mithridate.training.randomness import Seeds;"
        "print(Seeds.of(bytes(range(32))).generator(7, 'noise').integers(2**62, size=3).tolist())"
    )
    # Another hash seed: a key made with Python's own `hash` would change.
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=600
    )
    here = SEEDS.generator(7, "noise").integers(2**62, size=3).tolist()
    assert done.stdout.strip() == str(here)


def test_a_stream_starts_anew_whenever_it_is_asked_for() -> None:
    first = SEEDS.generator(3, "noise").standard_normal(100)
    SEEDS.generator(4, "noise").standard_normal(17)
    assert np.array_equal(SEEDS.generator(3, "noise").standard_normal(100), first)


@pytest.mark.parametrize(
    "pair",
    [
        ((SEED, 0, "noise"), (SEED, 0, "batches")),
        ((SEED, 0, "noise"), (SEED, 0, "initial weights")),
        ((SEED, 0, "noise"), (SEED, 1, "noise")),
        ((SEED, 1, "noise"), (SEED, 2, "noise")),
        ((SEED, 0, "noise"), (PUBLIC_SEED, 0, "noise")),
    ],
    ids=["purpose", "other purpose", "instance", "next instance", "seed"],
)
def test_streams_are_uncorrelated(pair: tuple[tuple[bytes, int, str], tuple[bytes, int, str]]) -> None:
    count = 100_000
    one, two = (Seeds.of(root).generator(at, purpose).standard_normal(count) for root, at, purpose in pair)
    # Under independence sqrt(n) times the correlation is standard normal: beyond 6.5 with probability 8e-11. Nine lags
    # of five pairs: false alarms below 4e-9. A stream shifted by up to four places is found, too.
    for lag in range(-4, 5):
        correlation = float(np.mean(one[max(0, lag) : count + min(0, lag)] * two[max(0, -lag) : count - max(0, lag)]))
        assert abs(correlation) * math.sqrt(count) < 6.5


def test_normals_reach_beyond_six_standard_deviations() -> None:
    # What `generator` promises of its single-precision normals. P(|z| > 5.8) = 6.6e-9, so 2^23 draws do not show it;
    # but the law of the largest of n = 2^23 draws does: P(max |z| < 4.7) = exp(-n 2.6e-6) < 1e-9, and beyond 6.9 it is
    # with probability n 5.2e-12 < 5e-5 (a constant seed: no chance is left).
    normals = SEEDS.generator(0, "noise").standard_normal(2**23, dtype=np.float32)
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

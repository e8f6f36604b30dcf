"""Damage, at large: every bit of small files, and very many mutated ones, for every reader and command.

`make slow` runs all of it; the rest of the time a slice. `MITHRIDATE_FUZZ_INPUTS` and `MITHRIDATE_FUZZ_SEED` choose how
many inputs and which ones; a failure prints the seed, and tests/fuzzing.py repeats a single input.
"""

import json
import os
import random
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import MEMORY_BYTES
from test_run_directory import DEVICE, SEED, make_manifest, make_tally

from mithridate import SampledGaussian, Votes
from mithridate.accounting.curve_store import CurveStore
from mithridate.accounting.privacy_loss import ErrorBudget, TradeoffCurve, compose
from mithridate.errors import MithridateError
from mithridate.training.run_directory import RunDirectory

SLICE = 1000
ALL = 100_000
# Of each kind of file, in the slice.
FLIPS = 400


# --- every single bit -----------------------------------------------------------------------------------------------


def flipped(data: bytes, bit: int) -> bytes:
    """The bytes with one bit turned over."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def check_flips(path: Path, state: Callable[[], Any], *, bits: int | None) -> dict[str, int]:
    """Turn over every bit of a file, or some: what is read is refused (None) or as good as before; how often each."""
    data, before = path.read_bytes(), state()
    assert before is not None
    chosen = range(8 * len(data)) if bits is None else sorted(random.Random(3).sample(range(8 * len(data)), bits))
    found = {"refused": 0, "without effect": 0}
    for bit in chosen:
        path.write_bytes(flipped(data, bit))
        after = state()
        assert after is None or after == before, f"bit {bit} of {path.name}"
        found["refused" if after is None else "without effect"] += 1
    path.write_bytes(data)
    assert state() == before
    return found


def small_cache(folder: Path) -> tuple[Path, Callable[[], Any]]:
    """A cache of two curves of a few lines each, as they pass for right."""
    mechanism = SampledGaussian(2.0, 1.0, 4)
    store = CurveStore(mechanism, folder)
    for split in ((1, 0), (0, 2)):
        curve = compose(2.0, 1.0, 4, *split)
        some = slice(None, None, max(1, len(curve.slopes) // 12))
        store.put(*split, TradeoffCurve(curve.intercepts[some], curve.slopes[some], ErrorBudget(0.0, 1e-11, 0.0, 0.0)))
    store.close()
    (path,) = folder.glob("curves-*.npz")

    def state() -> Any:
        found = CurveStore(mechanism, folder)
        curves = [found.get(*split) for split in ((1, 0), (0, 2))]
        return None if None in curves else [(c.intercepts.tobytes(), c.slopes.tobytes(), c.budget) for c in curves if c]

    return path, state


def small_votes(folder: Path) -> tuple[Path, Callable[[], Any]]:
    """A votes file with everything in it that one can have."""
    votes = Votes(
        np.array([[3, 1], [2, 2]]),
        SampledGaussian(2.0, 0.5, 4),
        score_sums=np.array([[2.5, 1.5], [2.0, 2.0]]),
        labels=np.array([0, 1]),
        data_fingerprint="of the data",
        run_ids=("a",),
        assumptions=("The number of examples is public.",),
        recipe={"config": {"instances": 4}},
        shards={"a": ((0, 4),)},
        devices={"cpu": 4},
    )
    votes.save(folder / "votes.npz")

    def state() -> Any:
        try:
            loaded = Votes.load(folder / "votes.npz")
        except MithridateError:
            return None
        return "the same" if loaded == votes else loaded

    return folder / "votes.npz", state


def small_shard(folder: Path) -> tuple[Path, Callable[[], Any]]:
    """The first shard of a run, of which a group is trained again when its shard is refused."""
    manifest = make_manifest()
    with RunDirectory.open(folder / "run", manifest, SEED) as run:
        for group in run.manifest.ranges:
            run.save_tally(group, make_tally(group, examples=2), DEVICE)
        first, manifest = run.manifest.ranges[0], run.manifest

    def state() -> Any:
        again = RunDirectory(folder / "run", manifest, SEED)
        again._find_done()
        if first in again.missing():
            return None
        return {name: (a.dtype.str, a.shape, a.tobytes()) for name, a in again.total().items()}, again.devices

    return folder / "run" / "shards" / "000000-000002.npz", state


MAKERS = [small_cache, small_votes, small_shard]


@pytest.fixture
def private(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir(mode=0o700)
    return tmp_path / "files"


@pytest.mark.parametrize("make", MAKERS, ids=["cache", "votes", "shard"])
def test_some_flipped_bits_are_found_or_without_effect(private: Path, make: Any) -> None:
    found = check_flips(*make(private), bits=FLIPS)
    assert found["refused"] > FLIPS / 4  # most of a file matters


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS, ids=["cache", "votes", "shard"])
def test_every_flipped_bit_is_found_or_without_effect(
    private: Path, make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path, state = make(private)
    found = check_flips(path, state, bits=None)
    assert sum(found.values()) == 8 * path.stat().st_size
    with capsys.disabled():
        print(f"\n{make.__name__}: {path.stat().st_size} bytes, {found}")


# --- very many mutated files ----------------------------------------------------------------------------------------


def fuzz(inputs: int, seed: int) -> dict[str, Any]:
    """What came of so many mutated files, in a process of its own."""
    command = [
        sys.executable,
        str(Path(__file__).with_name("fuzzing.py")),
        "--inputs",
        str(inputs),
        "--seed",
        str(seed),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def check_fuzz(inputs: int, seed: int) -> dict[str, Any]:
    found = fuzz(inputs, seed)
    assert found["failures"] == [], f"seed {seed}"
    assert found["inputs"] == inputs
    assert found["peak_bytes"] < MEMORY_BYTES
    return found


@pytest.mark.more
def test_a_slice_of_all_mutated_files() -> None:
    check_fuzz(SLICE, 0)


@pytest.mark.slow
def test_very_many_mutated_files(capsys: pytest.CaptureFixture[str]) -> None:
    inputs = int(os.environ.get("MITHRIDATE_FUZZ_INPUTS", ALL))
    seed = int(os.environ.get("MITHRIDATE_FUZZ_SEED", secrets.randbelow(10**9)))
    with capsys.disabled():
        print(f"\nfuzzing with the seed {seed}")
        found = check_fuzz(inputs, seed)
        print({name: found[name] for name in ("inputs", "cpu_seconds", "peak_bytes", "slowest")})

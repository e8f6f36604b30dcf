"""The tight certificate: threats, splits, subsampling, and the cache of curves."""

import gc
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import ComposedLoss, one_step_curve
from scipy import optimize, special, stats

from mithridate._io.files import cache_folder
from mithridate.accounting import fdp
from mithridate.accounting.curve_store import CurveStore, check_lines, check_plausible, least_curves
from mithridate.accounting.fdp import FDP, CurveFamily, Curves, FdpAccountant
from mithridate.accounting.privacy_loss import ErrorBudget, TradeoffCurve, compose
from mithridate.core.mechanism import SampledGaussian, Subsampled, Threat
from mithridate.core.rule import Margins
from mithridate.errors import NumericalError

FloatArray = npt.NDArray[np.float64]
SMALL = SampledGaussian(2.0, 0.3, 6)
LEVELS = np.array([1e-3, 0.01, 0.1, 0.3, 0.7, 0.99])


def margins(miss: npt.ArrayLike, rival: npt.ArrayLike) -> Margins:
    miss, rival = np.atleast_1d(np.asarray(miss, float)), np.atleast_1d(np.asarray(rival, float))
    return Margins.of(1 - miss, miss, rival)


def line(slope: float) -> TradeoffCurve:
    """The curve K(x) = min(1, slope x)."""
    return TradeoffCurve(np.zeros(1), np.array([slope]), ErrorBudget(0.0, 0.0, 0.0, 0.0))


# --- threats and splits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("threat", "split"), [(Threat.ADD, (5, 0)), (Threat.REMOVE, (0, 5)), (Threat.REPLACE, (5, 5))])
def test_each_threat_asks_for_its_split(threat: Threat, split: tuple[int, int]) -> None:
    # Where exactly the exact curve crosses: just inside must hold, just outside must not.
    exact = ComposedLoss(SMALL.noise_multiplier, SMALL.sample_rate, SMALL.steps, *split, points=12001)
    limit = optimize.brentq(lambda x: exact.curve(x) - 0.5, 1e-7, 0.5, xtol=1e-12)
    accountant = FdpAccountant(Curves(SMALL), threat)
    assert not accountant.holds(5, margins(limit, limit))[0]
    assert not accountant.holds(5, margins(limit * (1 + 1e-6), limit * (1 + 1e-6)))[0]
    assert accountant.holds(5, margins(limit * 0.998, limit * 0.998))[0]


def test_a_yes_holds_for_every_exact_split_and_brute_force_agrees() -> None:
    rng = np.random.default_rng(7)
    miss = 10 ** rng.uniform(-3, -0.5, 60)
    rival = miss * rng.uniform(0.3, 1, 60)
    accountant = FdpAccountant(Curves(SMALL), Threat.SYMMETRIC_DIFFERENCE)
    seen: set[bool] = set()
    for radius in (1, 2, 3, 4, 6):
        found = accountant.holds(radius, margins(miss, rival))
        brute, close = np.ones(60, dtype=bool), np.zeros(60, dtype=bool)
        for deleted in range(radius + 1):
            split = (deleted, radius - deleted)
            sums = (lambda k: k(miss) + k(rival))(compose(2.0, 0.3, 6, *split))
            brute &= sums < 1
            close |= np.abs(sums - 1) < 5e-4
            exact = ComposedLoss(2.0, 0.3, 6, *split, points=12001)
            for i in np.flatnonzero(found):
                assert exact.curve(float(miss[i])) + exact.curve(float(rival[i])) < 1
        assert np.array_equal(found[~close], brute[~close])
        seen |= set(found.tolist())
    assert seen == {True, False}


class FakeFamily:
    """Curves by formula: pure splits double every probability, mixed ones multiply it by `mixed`, `bad` by 3.95."""

    chain_only = is_moved = False

    def __init__(self, mixed: float, bad: tuple[int, int] | None = None) -> None:
        self.mixed, self.bad = mixed, bad
        self.asked: set[tuple[int, int]] = set()

    def curve(self, deleted: int, inserted: int) -> TradeoffCurve:
        self.asked.add((deleted, inserted))
        if (deleted, inserted) == self.bad:
            return line(3.95)
        return line(self.mixed if deleted and inserted else 2.0)

    def chain(self, deleted: int, inserted: int) -> Callable[[np.ndarray], np.ndarray]:
        pure = self.curve(deleted, 0), self.curve(0, inserted)
        return lambda x: pure[0](pure[1](x))

    def close(self) -> None:
        """Nothing to keep."""


@pytest.mark.parametrize(("mixed", "shown"), [(3.0, True), (3.95, False)])
def test_mixed_splits_that_the_chain_cannot_show_are_checked_one_by_one(mixed: float, shown: bool) -> None:
    # Pure: 2 (.13 + .13) < 1. Chain: 4 * .26 > 1. So every mixed split needs a curve of its own.
    family = FakeFamily(mixed)
    accountant = FdpAccountant(family, Threat.SYMMETRIC_DIFFERENCE)  # pyright: ignore[reportArgumentType]
    assert accountant.holds(600, margins(0.13, 0.13))[0] == shown
    if shown:
        assert {(d, 600 - d) for d in range(601)} <= family.asked


def test_a_single_bad_split_among_many_refuses() -> None:
    for bad in (1, 2, 299, 300, 301, 598, 599):
        family = FakeFamily(3.0, bad=(bad, 600 - bad))
        accountant = FdpAccountant(family, Threat.SYMMETRIC_DIFFERENCE)  # pyright: ignore[reportArgumentType]
        assert not accountant.holds(600, margins(0.13, 0.13))[0]


def test_the_error_budget_is_the_largest_of_all_curves_used() -> None:
    accountant = FdpAccountant(Curves(SMALL), Threat.ADD)
    assert accountant.error_budget == {}
    for radius in (2, 5):
        accountant.holds(radius, margins(0.01, 0.01))
    budgets = [compose(2.0, 0.3, 6, radius, 0).budget for radius in (2, 5)]
    assert accountant.error_budget["rounding"] == max(b.rounding for b in budgets)
    assert accountant.error_budget["loss"] == max(b.loss for b in budgets)


def test_a_curve_that_contradicts_another_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MITHRIDATE_CACHE", "off")
    family = CurveFamily(SMALL)
    family.curve(5, 0)
    monkeypatch.setattr(fdp, "compose", lambda *_: line(1.0))
    with pytest.raises(NumericalError, match="contradicts"):
        family.curve(6, 0)


# --- subsampling ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.95])
@pytest.mark.parametrize(("noise", "rate"), [(1.5, 0.3), (4.0, 0.9), (3.0, 0.02)])
@pytest.mark.parametrize("changes", [1, 4, 20])
def test_one_subsampled_step_is_never_below_the_exact_mixture(
    noise: float, rate: float, keep: float, changes: int
) -> None:
    # One step on a kept part is one step at rate keep * q, and a threshold is best whatever was kept: equality.
    family = Curves(Subsampled(keep, SampledGaussian(noise, rate, 1)))
    for split in ((changes, 0), (0, changes)):
        found = family.curve(*split)(LEVELS)
        exact = np.array([one_step_curve(noise, keep * rate, *split, float(x)) for x in LEVELS])
        assert np.all(found >= exact - 1e-12)
        assert np.all(found <= exact + 2e-3)


@pytest.mark.parametrize(("keep", "changes", "steps"), [(0.3, 4, 30), (0.7, 10, 200)])
def test_many_subsampled_steps_are_never_below_the_sum_test(keep: float, changes: int, steps: int) -> None:
    # A real test of the composed mechanism: the sum of all updates. Kept ~ Binom(r, keep), sampled ~ Binom(kept T, q).
    noise, rate = 6.0, 0.2
    spread = noise * np.sqrt(steps)
    sampled = np.arange(changes * steps + 1)
    law = np.zeros(len(sampled))
    for kept in range(changes + 1):
        law += stats.binom.pmf(kept, changes, keep) * stats.binom.pmf(sampled, kept * steps, rate)
    family = Curves(Subsampled(keep, SampledGaussian(noise, rate, steps)))
    closest = 1.0
    for threshold in np.linspace(-1, 4, 21) * spread:
        alone = float(special.ndtr(-threshold / spread))
        added = float(law @ special.ndtr((sampled - threshold) / spread))
        assert family.curve(changes, 0)(np.array([alone]))[0] >= added - 1e-12
        closest = min(closest, float(family.curve(changes, 0)(np.array([alone]))[0]) - added)
        # Reflected, with D the larger set.
        assert family.curve(0, changes)(np.array([1 - added]))[0] >= 1 - alone - 1e-12
    assert closest < 0.01  # The sum is nearly the best test, so a curve far above it would be wasteful.


def test_keeping_everything_is_the_inner_mechanism_and_less_never_hurts() -> None:
    inner = SampledGaussian(3.0, 0.05, 40)
    for split in ((6, 0), (0, 6)):
        curves = [Curves(Subsampled(keep, inner)).curve(*split)(LEVELS) for keep in (1.0, 0.6, 0.2, 0.01)]
        whole = Curves(inner).curve(*split)(LEVELS)
        assert np.all(curves[0] >= whole - 1e-9)
        assert curves[0] == pytest.approx(whole, abs=1e-3)
        for more, less in pairwise(curves):
            assert np.all(less <= more + 1e-9)
        assert np.all(curves[-1] >= LEVELS)


@pytest.mark.more
@pytest.mark.parametrize("keep", [0.08, 0.5])
@pytest.mark.parametrize("changes", [1, 5, 20])
def test_without_noise_to_speak_of_the_random_part_alone_protects(keep: float, changes: int) -> None:
    # Whoever is kept is seen for certain; with probability w nobody is, and then both laws agree. Hence the exact
    # curves, w x + 1 - w where only D' has more, and x / w where only D has.
    family = Curves(Subsampled(keep, SampledGaussian(0.2, 0.5, 200)))
    nobody = (1 - keep) ** changes
    for split, exact in (((changes, 0), nobody * LEVELS + 1 - nobody), ((0, changes), LEVELS / nobody)):
        found = family.curve(*split)(LEVELS)
        assert np.all(found >= np.minimum(exact, 1.0) - 1e-12)
        assert found == pytest.approx(np.minimum(exact, 1.0), rel=1e-3, abs=1e-6)


def test_mixed_splits_of_a_subsampled_mechanism_are_chained() -> None:
    mechanism = Subsampled(0.5, SampledGaussian(1.5, 0.3, 1))
    family = Curves(mechanism)
    assert family.chain_only
    with pytest.raises(NumericalError, match="mixed"):
        family.curve(1, 1)
    # The chain must cover the exact mixed split: P at rate .15 with 3 deletions, Q with 2 insertions.
    chain = family.curve(3, 0)(family.curve(0, 2)(LEVELS))
    exact = np.array([one_step_curve(1.5, 0.15, 3, 2, float(x)) for x in LEVELS])
    assert np.all(chain >= exact - 1e-12)
    outer, inner = family.curve(2, 0), family.curve(0, 2)
    limit = float(optimize.brentq(lambda x: float(outer(inner(np.array([x])))[0]) - 0.5, 1e-4, 0.5))
    for threat, radius in ((Threat.REPLACE, 2), (Threat.SYMMETRIC_DIFFERENCE, 4)):
        accountant = FdpAccountant(family, threat)
        assert not accountant.holds(radius, margins(limit * 1.001, limit * 1.001))[0]


# --- the cache --------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MITHRIDATE_CACHE", str(tmp_path / "curves"))
    yield tmp_path / "curves"
    gc.collect()


def fill(mechanism: SampledGaussian = SMALL) -> TradeoffCurve:
    """Compute and keep two curves; return the first."""
    family = CurveFamily(mechanism)
    curve = family.curve(3, 0)
    family.curve(0, 4)
    family.close()
    return curve


def stored(mechanism: SampledGaussian) -> CurveStore:
    """What is on disk now."""
    return CurveStore(mechanism, cache_folder())


def no_engine(*_: object) -> TradeoffCurve:
    raise AssertionError("the curve should have come from the cache")


def test_a_cached_curve_is_the_computed_one(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = fill()
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(fdp, "compose", no_engine)
    cached = CurveFamily(SMALL).curve(3, 0)
    assert np.array_equal(cached.intercepts, computed.intercepts)
    assert np.array_equal(cached.slopes, computed.slopes)
    assert cached.budget == computed.budget
    assert np.array_equal(cached(LEVELS), computed(LEVELS))


def test_mechanisms_never_share_a_file(cache: Path) -> None:
    fill()
    for other in (SampledGaussian(2.0, 0.3, 7), SampledGaussian(2.0, 0.3000001, 6), SampledGaussian(2.5, 0.3, 6)):
        assert stored(other).get(3, 0) is None
        fill(other)
    assert len(list(cache.iterdir())) == 4


def damaged(good: bytes) -> dict[str, bytes]:
    """Ways in which a file may be broken."""
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 0xFF
    return {
        "empty": b"",
        "garbage": b"certified" * 99,
        "truncated": good[: len(good) // 2],
        "nearly whole": good[:-1],
        "flipped": bytes(flipped),
        "header": b"QK" + good[2:],
    }


@pytest.mark.parametrize("way", list(damaged(b"0123456789")))
def test_a_damaged_file_is_rebuilt(way: str, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    computed = fill()
    (file,) = cache.iterdir()
    broken = damaged(file.read_bytes())[way]
    file.write_bytes(broken)
    with caplog.at_level(logging.WARNING):
        assert stored(SMALL).get(3, 0) is None
    assert "rebuilt" in caplog.text
    fill()
    assert [f.name for f in cache.iterdir()] == [file.name]
    again = stored(SMALL).get(3, 0)
    assert again is not None
    assert np.array_equal(again.intercepts, computed.intercepts)


def test_a_shorter_header_of_an_array_is_damage(cache: Path) -> None:
    """Numpy would take the rest of the header for numbers, and never see the end of the member and its checksum."""
    fill()
    (file,) = cache.iterdir()
    good = file.read_bytes()
    for name in ("slopes", "intercepts", "lines", "splits"):
        length = good.index(b"\x93NUMPY", good.index(f"{name}.npy".encode())) + 8
        for bit in range(16):
            broken = bytearray(good)
            broken[length + bit // 8] ^= 1 << bit % 8
            file.write_bytes(bytes(broken))
            assert stored(SMALL).get(3, 0) is None


def lies() -> dict[str, TradeoffCurve]:
    """Curves that no mechanism has, or not this one; the first two are what damage makes of a curve."""
    right = compose(2.0, 0.3, 6, 3, 0)
    return {
        "identity": line(1.0),
        "flat": TradeoffCurve(np.zeros(2), np.array([1.0, 2.0]), right.budget),
        "below one": TradeoffCurve(right.intercepts * 0.9, right.slopes, right.budget),
        "less noise": compose(2.2, 0.3, 6, 3, 0),
        "fewer changes": compose(2.0, 0.3, 6, 2, 0),
        "slopes that fall": TradeoffCurve(right.intercepts[::-1], right.slopes[::-1], right.budget),
    }


@pytest.mark.parametrize("kind", list(lies()))
def test_a_curve_that_cannot_be_right_is_not_believed(kind: str, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever wrote it, and though its hash is right."""
    store = stored(SMALL)
    store.put(3, 0, lies()[kind])
    store.close()
    with caplog.at_level(logging.WARNING):
        assert stored(SMALL).get(3, 0) is None
    assert "rebuilt" in caplog.text


def test_more_changes_that_are_harder_to_see_are_not_believed(cache: Path) -> None:
    store = stored(SMALL)
    store.put(3, 0, compose(2.0, 0.3, 6, 5, 0))
    store.put(4, 0, compose(2.0, 0.3, 6, 4, 0))
    store.close()
    assert stored(SMALL).get(4, 0) is None


def test_the_hash_covers_every_number(cache: Path) -> None:
    """A number changed in the file by someone who writes right checksums is found as well."""
    fill()
    (file,) = cache.iterdir()
    with np.load(file) as content:
        arrays = {name: content[name] for name in content.files}
    for name in ("intercepts", "slopes", "budgets"):
        changed = {**arrays, name: arrays[name] * (1 + 1e-12)}
        with file.open("wb") as stream:
            np.savez(stream, **changed)
        assert stored(SMALL).get(3, 0) is None
    with file.open("wb") as stream:
        np.savez(stream, **arrays, more=np.zeros(3))
    assert stored(SMALL).get(3, 0) is None
    with file.open("wb") as stream:
        np.savez(stream, **arrays)
    assert stored(SMALL).get(3, 0) is not None


@given(
    noise=st.floats(0.5, 20),
    rate=st.sampled_from([1e-6, 0.01, 0.3, 0.99, 1.0]),
    steps=st.sampled_from([1, 3, 40, 400]),
    split=st.sampled_from([(1, 0), (0, 1), (9, 0), (0, 9), (3, 2), (1, 8)]),
)
@settings(max_examples=40)
def test_right_curves_are_plausible(noise: float, rate: float, steps: int, split: tuple[int, int]) -> None:
    curve = compose(noise, rate, steps, *split)
    check_lines(curve.intercepts, curve.slopes)
    check_plausible(SampledGaussian(noise, rate, steps), {split: curve})


def test_the_least_curve_of_a_gaussian_is_its_own() -> None:
    """Without sampling the sum of all steps says all there is to know: K(x) = Phi(Phi^-1(x) + changes sqrt(T) / s)."""
    for at, least in least_curves(SampledGaussian(9.0, 1.0, 16), [(2, 0), (0, 2), (1, 1)]):
        expected = special.ndtr(special.ndtri(at) + 2 * 4 / 9)
        np.testing.assert_allclose(least, expected, rtol=1e-9)


def test_the_least_curve_is_below_the_best_test() -> None:
    """One step and one deleted example, by hand: P = (1 - q) N(0, s) + q N(1, s), and every event is a threshold."""
    noise, rate = 0.7, 0.2
    ((at, least),) = least_curves(SampledGaussian(noise, rate, 1), [(1, 0)])
    threshold = -noise * special.ndtri(at)
    exact = (1 - rate) * special.ndtr(-threshold / noise) + rate * special.ndtr((1 - threshold) / noise)
    assert (least <= exact + 1e-12).all()
    assert (least > at).any()


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_may_write_to_is_not_used(
    mode: int, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill()
    before = {file.name: file.read_bytes() for file in cache.iterdir()}
    cache.chmod(mode)
    with caplog.at_level(logging.WARNING):
        assert stored(SMALL).get(3, 0) is None
        fill()
    assert "not used" in caplog.text
    assert {file.name: file.read_bytes() for file in cache.iterdir()} == before
    cache.chmod(0o700)
    assert stored(SMALL).get(3, 0) is not None
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)  # everything belongs to somebody else
    assert stored(SMALL).get(3, 0) is None


def test_a_file_that_others_may_write_to_is_not_used(cache: Path) -> None:
    fill()
    (file,) = cache.iterdir()
    file.chmod(0o622)
    assert stored(SMALL).get(3, 0) is None
    content = file.read_bytes()
    file.unlink()
    (cache / "elsewhere").write_bytes(content)
    file.symlink_to(cache / "elsewhere")
    assert stored(SMALL).get(3, 0) is None


def test_a_new_folder_is_private_whatever_the_umask(cache: Path) -> None:
    before = os.umask(0o002)
    try:
        fill()
    finally:
        os.umask(before)
    assert stored(SMALL).get(3, 0) is not None


def test_unfinished_files_go_when_they_are_old(cache: Path) -> None:
    """Those of a process that was killed while it wrote; one that is being written stays."""
    cache.mkdir(mode=0o700)
    for name in (".curves-old.tmp", ".curves-new.tmp", "mine.tmp"):
        (cache / name).write_bytes(b"half of it")
    long_ago = time.time() - 86_400
    for name in (".curves-old.tmp", "mine.tmp"):
        os.utime(cache / name, (long_ago, long_ago))
    fill()
    assert {file.name for file in cache.iterdir() if file.suffix == ".tmp"} == {".curves-new.tmp", "mine.tmp"}


def test_a_pipe_in_place_of_the_file_is_not_waited_for(cache: Path) -> None:
    fill()
    (file,) = cache.iterdir()
    file.unlink()
    os.mkfifo(file, 0o600)
    assert stored(SMALL).get(3, 0) is None


@pytest.mark.parametrize("way", ["encrypted bit", "single array"])
def test_other_kinds_of_damage_are_rebuilt_too(way: str, cache: Path) -> None:
    fill()
    (file,) = cache.iterdir()
    if way == "single array":
        with file.open("wb") as stream:
            np.save(stream, np.zeros(3))
    else:
        content = bytearray(file.read_bytes())
        content[content.index(b"PK\x01\x02") + 8] ^= 1  # The flag "encrypted" in the zip's directory.
        file.write_bytes(bytes(content))
    assert stored(SMALL).get(3, 0) is None


def test_a_file_of_another_mechanism_is_not_used(cache: Path) -> None:
    fill()
    (ours,) = cache.iterdir()
    other = SampledGaussian(9.0, 0.3, 6)
    fill(other)
    (theirs,) = (f for f in cache.iterdir() if f != ours)
    ours.write_bytes(theirs.read_bytes())
    assert stored(SMALL).get(3, 0) is None


def _writer(folder: str, first: int) -> None:
    os.environ["MITHRIDATE_CACHE"] = folder
    for changes in range(first, first + 12, 4):
        family = CurveFamily(SMALL)
        family.curve(changes, 0)
        family.close()


@pytest.mark.more
def test_concurrent_writers_leave_a_valid_file(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_writer, args=(str(cache), first)) for first in (1, 2, 3, 4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0, 0, 0, 0]
    assert len(list(cache.iterdir())) == 1  # No temporary file is left behind.
    store = stored(SMALL)
    assert "damaged" not in caplog.text
    kept = [changes for changes in range(1, 13) if store.get(changes, 0) is not None]
    assert kept  # The last writer wins, so some curves may be lost, but never all.
    for changes in kept:
        found, computed = store.get(changes, 0), compose(2.0, 0.3, 6, changes, 0)
        assert found is not None
        assert np.array_equal(found.intercepts, computed.intercepts)


def test_what_another_process_wrote_meanwhile_is_kept(cache: Path) -> None:
    first, second = CurveFamily(SMALL), CurveFamily(SMALL)
    first.curve(1, 0)
    second.curve(2, 0)
    first.close()
    second.close()
    store = stored(SMALL)
    assert store.get(1, 0) is not None
    assert store.get(2, 0) is not None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A file where the folder should be: works for root too, who may write anywhere.
    (tmp_path / "file").write_text("not a folder")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("MITHRIDATE_CACHE", str(folder))
        assert fill()(np.array([0.1]))[0] > 0.1


def test_a_method_may_keep_nothing(cache: Path) -> None:
    for mechanism in (SMALL, Subsampled(0.5, SMALL)):
        accountant = FDP(cached=False).accountant(mechanism, Threat.ADD)
        accountant.holds(3, margins(0.01, 0.01))
        accountant.close()
    assert not cache.exists()


@pytest.mark.parametrize("value", ["off", ""])
def test_off_writes_nothing(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MITHRIDATE_CACHE", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert cache_folder() is None
    fill()
    assert list(tmp_path.iterdir()) == []


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MITHRIDATE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "mithridate"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "mithridate"

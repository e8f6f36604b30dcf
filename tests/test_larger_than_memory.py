"""Data that is larger than memory: mapped, in pieces, and the same votes bit for bit as data that is not."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mithridate.core.provenance import fingerprint
from mithridate.core.votes import Votes
from mithridate.data import examples as examples_file
from mithridate.data.examples import Preparation, fitted_preprocessing
from mithridate.defences import defence, predict
from mithridate.defences._whole_rows import ranks_of
from mithridate.errors import ArtifactError, ConfigError
from mithridate.features import pick_encoder

Array = npt.NDArray[Any]
METHODS: dict[str, dict[str, Any]] = {
    "nearest-neighbours": {"neighbours": 9},
    "kernel-vote": {},
    "ridge": {},
}


def images(seed: int, count: int) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (count, 9, 8)).astype(np.uint8)


def small_pieces(patch: pytest.MonkeyPatch) -> None:
    """All arrays of more than 100 bytes in files, and pieces of seven inputs."""
    patch.setenv("MITHRIDATE_MEMORY_BYTES", "100")
    patch.setattr(examples_file, "_PIECE_BYTES", 1)
    patch.setattr(examples_file, "_PIECE", 7)


def mapped(path: Path, array: Array) -> Array:
    np.save(path, array)
    return np.load(path, mmap_mode="r")


def same(one: Votes, other: Votes) -> bool:
    """Everything that a certificate could tell them apart by."""
    evidence = one.evidence.keys() == other.evidence.keys() and all(
        np.array_equal(one.evidence[name], other.evidence[name]) for name in one.evidence
    )
    said = (one.training, one.data_fingerprint, one.recipe, one.assumptions, one.mechanism)
    also = (other.training, other.data_fingerprint, other.recipe, other.assumptions, other.mechanism)
    return evidence and said == also and np.array_equal(one.counts, other.counts)


@pytest.mark.parametrize("method", METHODS)
def test_votes_are_the_same_in_pieces_from_a_mapped_file(method: str, tmp_path: Path) -> None:
    x, y, inputs = images(0, 80), np.arange(80) % 3, images(1, 20)
    made = defence(method, features="oriented-gradients", classes=3, num_train=80, **METHODS[method])
    whole = made.train((x, y), inputs, run_dir=tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        small_pieces(patch)
        in_pieces = made.train((mapped(tmp_path / "x.npy", x), y), inputs, run_dir=tmp_path / "pieces")
        assert same(whole, in_pieces)
        assert same(predict(tmp_path / "whole", inputs), predict(tmp_path / "pieces", inputs))
    assert not (tmp_path / "whole/rows.npy").exists()
    assert (tmp_path / "pieces/rows.npy").exists()
    assert same(predict(tmp_path / "whole", inputs), predict(tmp_path / "pieces", inputs))


def test_a_kept_file_that_was_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)
    made = defence("nearest-neighbours", classes=3, num_train=40, neighbours=5)
    made.train((images(0, 40), np.arange(40) % 3), images(1, 4), run_dir=tmp_path)
    content = bytearray((tmp_path / "rows.npy").read_bytes())
    content[-1] ^= 1
    (tmp_path / "rows.npy").write_bytes(content)
    with pytest.raises(ArtifactError, match="changed after it was written"):
        predict(tmp_path, images(1, 4))


@pytest.mark.parametrize("features", [None, "oriented-gradients"])
def test_inputs_are_prepared_alike_in_pieces(features: str | None, tmp_path: Path) -> None:
    x = images(0, 30)
    prepare = Preparation((9, 8), "uint8", (0.1,), (0.3,), encoder=pick_encoder(features))
    whole = prepare(x, "training")
    with pytest.MonkeyPatch.context() as patch:
        small_pieces(patch)
        pieces = prepare(mapped(tmp_path / "x.npy", x), "training")
    assert isinstance(pieces, np.memmap)
    assert whole.dtype == pieces.dtype
    assert whole.tobytes() == pieces.tobytes()


def test_an_error_names_the_input_and_not_its_place_in_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)
    x = np.ones((30, 2))
    x[23, 1] = np.nan
    with pytest.raises(ConfigError, match="Input 23 of the training data"):
        Preparation((2,), "float")(x, "training")


def test_the_fingerprint_does_not_depend_on_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = images(0, 30), np.arange(30) % 3
    whole = fingerprint(x, y)
    monkeypatch.setattr("mithridate.core.provenance._HASHED", 7)
    assert fingerprint(x, y) == whole


def test_a_scaler_is_recognised_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(3, 2, (50, 4))
    scaled = (x - x.mean(axis=0)) / x.std(axis=0)
    signs = np.where(np.arange(50) % 2, 1.0, -1.0)[:, None]
    small_pieces(monkeypatch)
    assert [each.id for each in fitted_preprocessing(scaled)] == ["fitted-preprocessing"]
    assert not fitted_preprocessing(x)
    assert not fitted_preprocessing(np.hstack([signs, x]))


# --- the arithmetic of a GPU, on a CPU --------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 100])
@pytest.mark.parametrize("block", [1, 7, 1000])
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("method", ["nearest-neighbours", "kernel-vote"])
def test_what_a_gpu_computes_is_what_a_cpu_computes(
    method: str, mirrored: bool, block: int, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from mithridate.defences import _near, _on_gpu, _sending

    # Fine inputs, and coarse ones, of which many are equally near; in a mapped file.
    x, y, inputs = images(0, 80) // step, np.arange(80) % 3, images(1, 20) // step
    made = defence(method, features="none", classes=3, num_train=80, mirrored=mirrored, **METHODS[method])
    expected = made.train((x, y), inputs, device="cpu")
    monkeypatch.setattr(_on_gpu, "_BLOCK_EXAMPLES", block)
    monkeypatch.setattr(_on_gpu, "BLOCK_EXAMPLES", block)
    monkeypatch.setattr(_on_gpu, "_BYTES_OF_PRODUCT", 1 << 22)
    monkeypatch.setattr(_on_gpu, "_SPARE", 2)
    monkeypatch.setattr(_on_gpu, "_BYTES_OF_NEAREST", 1 << 22)
    monkeypatch.setattr(_sending, "_PIECE_BYTES", 1 << 8)
    used: list[_on_gpu.OnGpu] = []

    @contextmanager
    def gpu(runtime: Any) -> Iterator[_on_gpu.OnGpu]:
        used.append(_on_gpu.OnGpu(torch.device("cpu")))
        yield used[-1]

    monkeypatch.setattr(_near, "place_for", gpu)
    assert same(made.train((mapped(tmp_path / "x.npy", x), y), inputs), expected)
    assert used


@pytest.mark.parametrize("method", ["nearest-neighbours", "kernel-vote"])
def test_a_gpu_without_room_leaves_it_to_the_cpu(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch = pytest.importorskip("torch")
    from mithridate.defences import _near, _on_gpu

    x, y, inputs = images(0, 80), np.arange(80) % 3, images(1, 20)
    made = defence(method, features="none", classes=3, num_train=80, **METHODS[method])
    expected = made.train((x, y), inputs, device="cpu")

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(_on_gpu, "_dots", full)
    monkeypatch.setattr(_near, "place_for", lambda runtime: nullcontext(_on_gpu.OnGpu(torch.device("cpu"))))
    assert same(made.train((x, y), inputs), expected)
    assert "too little free memory" in caplog.text


def test_a_gpu_whose_products_are_rounded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from mithridate.defences import _on_gpu

    # Twice the norm needs 26 bits, more than single precision has.
    monkeypatch.setattr(_on_gpu, "LARGEST_NORM", 1 << 13)
    with pytest.raises(ConfigError, match="not exact"):
        _on_gpu.OnGpu(torch.device("cpu"))


def test_copies_are_put_in_order_in_little_memory() -> None:
    rows, labels = np.ones((20_000, 1000), dtype=np.int16), np.arange(20_000) % 2
    tracemalloc.start()
    try:
        ranks = ranks_of(rows, labels)
        assert tracemalloc.get_traced_memory()[1] < rows.nbytes // 2
    finally:
        tracemalloc.stop()
    assert np.array_equal(np.sort(ranks), np.arange(20_000))
    assert abs(int((np.diff(labels[np.argsort(ranks)]) != 0).sum())) == 1  # all of one label first


@pytest.mark.parametrize("default", ["bfloat16", "float64"])
def test_products_are_tried_in_the_precision_that_is_used(default: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from mithridate.defences import _on_gpu

    tried: list[Any] = []
    diag = torch.diag
    monkeypatch.setattr(torch, "diag", lambda values: tried.append(values.dtype) or diag(values))
    torch.set_default_dtype(getattr(torch, default))
    try:
        _on_gpu.OnGpu(torch.device("cpu"))
    finally:
        torch.set_default_dtype(torch.float32)
    assert tried == [torch.float32]


@pytest.mark.parametrize("features", ["unit-norm", "oriented-gradients"])
def test_a_row_that_an_encoder_refuses_has_its_number_in_the_whole(
    features: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)
    x = images(0, 40).astype(np.float64) / 255
    x[23, 0, 0] = np.nan
    prepare = Preparation(x.shape[1:], "float", encoder=pick_encoder(features))
    with pytest.raises(ConfigError, match="Row 23 holds"):
        prepare(x, "training")
    with pytest.raises(ConfigError, match="Row 23 holds"):
        list(prepare.compared(x, "training", sparse=True))

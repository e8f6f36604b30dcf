"""Pretrained encoders: pinned weights, rows that are functions of their inputs alone, kept rows, constants, doors."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import stat
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from mithridate import CertifiedClassifier, certify
from mithridate.cli import main
from mithridate.core.conditions import conditions_of
from mithridate.data import look
from mithridate.defences import defence
from mithridate.errors import ArtifactError, ConfigError
from mithridate.features import Calibration, EfficientNetLite0, Onnx, Pretrained, beside, encoder, from_dict
from mithridate.features import _encoder as encoders
from mithridate.features import efficientnet as efficientnets
from mithridate.features._conditioning import Conditioning, main_directions
from mithridate.features._row_store import RowStore
from mithridate.features._twice import RowMachine, _two_places, encoded_twice
from mithridate.features.efficientnet import _convolutions, _features, _mean_activation, _strides

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
Floats = npt.NDArray[np.float32]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows of a test are seen by no other one."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MITHRIDATE_CACHE", str(folder))
    return folder


def pretrained(name: str, **constants: Any) -> Pretrained:
    """An encoder that is none of our formulas."""
    found = encoder(name, **constants)
    assert isinstance(found, Pretrained)
    return found


# --- every row twice ----------------------------------------------------------------------------------------------


@given(count=st.integers(1, 300), batch=st.integers(2, 64))
def test_the_two_places_of_a_row_differ_and_so_do_its_neighbours(count: int, batch: int) -> None:
    first, second = _two_places(count, batch)
    assert len(set(first.tolist())) == len(set(second.tolist())) == count
    assert (first % batch != second % batch).all()
    together = [{at for at in range(count) if places[at] // batch == places[0] // batch} for places in (first, second)]
    assert together[0] == {0} or together[0] != together[1]


def summing(batch: int, change: Callable[[Floats], Floats] = lambda rows: rows) -> RowMachine:
    """A machine that doubles numbers, with something done to a whole batch."""
    return RowMachine(lambda inputs: change(np.array(inputs, dtype=np.float32)[:, None] * 2), batch, 0.0, workers=2)


@pytest.mark.parametrize("batch", [1, 4, 64])
@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_rows_come_back_in_their_order(batch: int, count: int) -> None:
    inputs = np.arange(count) + 0.5
    np.testing.assert_array_equal(encoded_twice(summing(batch), list(inputs), "it")[:, 0], 2 * inputs)


MIXING = {
    "mean of the batch": lambda rows: rows - rows.mean() * np.float32(1e-6),
    "place in the batch": lambda rows: rows * (1 + np.arange(len(rows), dtype=np.float32)[:, None] * 1e-6),
    "neighbour": lambda rows: rows + np.roll(rows, 1, axis=0) * np.float32(1e-6),
    "random": lambda rows: rows + np.random.default_rng().random(rows.shape, dtype=np.float32) * np.float32(1e-3),
}


@pytest.mark.parametrize("how", MIXING)
@pytest.mark.parametrize("count", [2, 5, 40])
def test_rows_that_depend_on_anything_but_their_input_are_refused(how: str, count: int) -> None:
    inputs = list(np.arange(1, count + 1, dtype=np.float64))
    with pytest.raises(ConfigError, match="other bits"):
        encoded_twice(summing(8, MIXING[how]), inputs, "it")


def test_alone_in_its_batch_a_row_cannot_depend_on_others_and_randomness_is_still_found() -> None:
    inputs = [1.0, 2.0, 3.0]
    once = encoded_twice(summing(1, MIXING["mean of the batch"]), inputs, "it")
    again = encoded_twice(summing(1, MIXING["mean of the batch"]), inputs[:1], "it")
    assert once[:1].tobytes() == again.tobytes()
    with pytest.raises(ConfigError, match="random numbers"):
        encoded_twice(summing(1, MIXING["random"]), inputs, "it")


def test_numbers_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ConfigError, match="not finite for input 1"):
        encoded_twice(summing(2, lambda rows: np.where(rows == 4, np.inf, rows)), [1.0, 2.0], "it")


# --- kept rows ----------------------------------------------------------------------------------------------------


def some_rows(count: int, seed: int = 0) -> tuple[npt.NDArray[np.uint8], Floats]:
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, 32), dtype=np.uint8), random.random((count, 5), dtype=np.float32)


def test_rows_are_found_again_by_their_input(tmp_path: Path) -> None:
    hashes, rows = some_rows(7)
    store = RowStore(tmp_path / "it", {"weights": "a"})
    store.add(hashes[:3], rows[:3])
    store.add(hashes[3:6], rows[3:6])
    asked = np.concatenate([hashes[::-1], hashes[2:3]])
    found, there = RowStore(tmp_path / "it", {"weights": "a"}).find(asked)
    assert there.tolist() == [False, *[True] * 7]
    assert found is not None
    np.testing.assert_array_equal(found[1:], np.concatenate([rows[5::-1], rows[2:3]]))


def test_rows_of_another_encoder_are_not_found(tmp_path: Path) -> None:
    hashes, rows = some_rows(3)
    RowStore(tmp_path, {"weights": "a"}).add(hashes, rows)
    assert not RowStore(tmp_path, {"weights": "b"}).find(hashes)[1].any()


def test_nothing_is_kept_without_a_folder() -> None:
    hashes, rows = some_rows(3)
    store = RowStore(None, {})
    store.add(hashes, rows)
    assert not store.find(hashes)[1].any()


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied"])
def test_a_damaged_file_is_left_alone(tmp_path: Path, damage: str) -> None:
    hashes, rows = some_rows(50)
    store = RowStore(tmp_path, {})
    store.add(hashes, rows)
    (path,) = tmp_path.glob("rows-*/*.npz")
    content = bytearray(path.read_bytes())
    place = content.index(rows[20].tobytes())
    content[place] ^= 1
    path.write_bytes({"cut": content[: len(content) // 2], "flipped": content, "emptied": b""}[damage])
    assert not RowStore(tmp_path, {}).find(hashes)[1].any()
    store.add(hashes, rows)  # and it can be written again
    assert RowStore(tmp_path, {}).find(hashes)[1].all()


def test_two_files_that_disagree_are_refused(tmp_path: Path) -> None:
    hashes, rows = some_rows(3)
    store = RowStore(tmp_path, {})
    store.add(hashes, rows)
    store.add(hashes[:2], rows[:2] + 1)
    with pytest.raises(ConfigError, match="disagree about the same input"):
        store.find(hashes)


@pytest.mark.skipif(os.name != "posix", reason="modes of files are those of POSIX")
def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hashes, rows = some_rows(3)
    RowStore(tmp_path, {}).add(hashes, rows)
    (folder,) = tmp_path.glob("rows-*")
    folder.chmod(0o777)
    assert not RowStore(tmp_path, {}).find(hashes)[1].any()
    assert "not kept" in caplog.text
    folder.chmod(0o700)
    (path,) = folder.glob("*.npz")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def _write_many(folder: str, seed: int) -> None:
    hashes, rows = some_rows(400)
    store = RowStore(Path(folder), {"weights": "a"})
    order = np.random.default_rng(seed).permutation(400)
    for part in np.array_split(order, 40):
        store.add(hashes[part], rows[part])
        store.find(hashes)


def test_many_writers_and_a_kill_leave_whole_files(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(str(tmp_path), seed)) for seed in range(4)]
    for each in writers:
        each.start()
    time.sleep(0.1)
    writers[0].kill()
    for each in writers:
        each.join()
    assert [each.exitcode for each in writers[1:]] == [0, 0, 0]
    hashes, rows = some_rows(400)
    found, there = RowStore(tmp_path, {"weights": "a"}).find(hashes)
    assert there.all()
    np.testing.assert_array_equal(found, rows)


# --- centre and directions ----------------------------------------------------------------------------------------


def test_features_are_those_of_exact_arithmetic_and_do_not_depend_on_other_rows() -> None:
    random = np.random.default_rng(1)
    embeddings = random.random((60, 200), dtype=np.float32) * np.float32(5)
    made = Conditioning(random.random(200), main_directions(random.normal(size=(150, 200)), 32), root=True)
    together = made(embeddings)
    for at in range(60):
        assert made(embeddings[at : at + 1]).tobytes() == together[at : at + 1].tobytes()
    assert made(embeddings[17:51]).tobytes() == together[17:51].tobytes()
    # The product of one row in fractions, from the same whole numbers.
    centred = np.sqrt(embeddings[3].astype(np.float64)) - made.centre
    whole = [Fraction(int(number)) for number in np.rint(centred / np.abs(centred).max() * 2.0**20)]
    assert made.directions is not None
    sums = [sum(w * Fraction(int(p)) for w, p in zip(whole, column, strict=True)) for column in made.directions.T]
    norm = math.sqrt(sum(each * each for each in sums))
    np.testing.assert_allclose(together[3], [float(each) / norm for each in sums], rtol=1e-6, atol=1e-7)


def test_no_partial_sum_of_the_product_can_be_rounded() -> None:
    # The worst case of the proof: as many entries as there may be, all as large as they can be.
    assert 2**20 * math.sqrt(1 << 16) * 2**21 < 2**53
    matrix = np.diag([1e6, 1.0, 0.0, 0.0])
    for whitening in (0.0, 0.5, 1.0):
        whole = main_directions(matrix, 4, 2.0**20, whitening)
        assert np.linalg.norm(whole, axis=0).max() <= 2**21
        assert (whole == np.rint(whole)).all()


def test_directions_are_those_of_a_singular_value_decomposition() -> None:
    random = np.random.default_rng(2)
    for shape in ((40, 90), (90, 40)):
        matrix = random.normal(size=shape)
        wanted = np.linalg.svd(matrix, full_matrices=False)[2][:12]
        signs = np.sign(np.take_along_axis(wanted, np.abs(wanted).argmax(axis=1)[:, None], axis=1))
        np.testing.assert_array_equal(main_directions(matrix, 12), np.rint((wanted * signs).T * 2**15))
    with pytest.raises(ConfigError, match="at most 40"):
        main_directions(random.normal(size=(40, 90)), 41)


def test_a_row_at_the_centre_stays_zero() -> None:
    made = Conditioning(np.full(3, 2.0), main_directions(np.eye(3) + 0.1, 2))
    assert not made(np.full((1, 3), 2.0, dtype=np.float32)).any()


@pytest.mark.parametrize(
    ("mean", "deviation"), [(0.0, 1.0), (-2.0, 0.7), (3.0, 2.5), (5.5, 4.0), (-9.0, 0.5), (1.0, 1e-9)]
)
def test_mean_activations_are_integrals(mean: float, deviation: float) -> None:
    density = stats.norm(mean, deviation).pdf
    inside, _ = integrate.quad(lambda t: t * density(t), 0, 6, points=[min(max(mean, 0), 6)], limit=200)
    wanted = inside + 6 * stats.norm(mean, deviation).sf(6)
    if deviation < 1e-6:
        wanted = min(6.0, max(0.0, mean))
    found = _mean_activation(np.array([mean]), np.array([deviation]))[0]
    assert found == pytest.approx(wanted, abs=2e-7)


# --- EfficientNet -------------------------------------------------------------------------------------------------


def random_weights(seed: int = 0, classes: int = 300) -> dict[str, torch.Tensor]:
    """Parameters of a network of the shape of EfficientNet-Lite0, with all numbers drawn at random."""
    torch.manual_seed(seed)
    found: dict[str, torch.Tensor] = {}

    def add(convolution: str, norm: str, outputs: int, inputs: int, size: int) -> None:
        found[f"{convolution}.weight"] = torch.randn(outputs, inputs, size, size) / math.sqrt(inputs * size * size)
        found[f"{norm}.weight"], found[f"{norm}.bias"] = torch.rand(outputs) + 0.5, torch.randn(outputs) * 0.3
        found[f"{norm}.running_mean"], found[f"{norm}.running_var"] = (
            torch.randn(outputs) * 0.1,
            torch.rand(outputs) + 0.5,
        )

    add("_conv_stem", "_bn0", 32, 3, 3)
    stages = [(1, 3, 1, 32, 16), (2, 3, 6, 16, 24), (2, 5, 6, 24, 40), (3, 3, 6, 40, 80), (3, 5, 6, 80, 112)]
    stages += [(4, 5, 6, 112, 192), (1, 3, 6, 192, 320)]
    at = 0
    for count, size, expansion, inputs, outputs in stages:
        for block in range(count):
            before = inputs if block == 0 else outputs
            if expansion > 1:
                add(f"_blocks.{at}._expand_conv", f"_blocks.{at}._bn0", before * expansion, before, 1)
            add(f"_blocks.{at}._depthwise_conv", f"_blocks.{at}._bn1", before * expansion, 1, size)
            add(f"_blocks.{at}._project_conv", f"_blocks.{at}._bn2", outputs, before * expansion, 1)
            at += 1
    add("_conv_head", "_bn1", 1280, 320, 1)
    found["_fc.weight"], found["_fc.bias"] = torch.randn(classes, 1280) / 30, torch.zeros(classes)
    return found


def slow_features(weights: dict[str, torch.Tensor], pictures: torch.Tensor) -> torch.Tensor:
    """The network as its authors write it: batch normalisation apart, padding as TensorFlow pads."""

    def layer(
        values: torch.Tensor, convolution: str, norm: str, stride: int = 1, *, bounded: bool = True
    ) -> torch.Tensor:
        kernel = weights[f"{convolution}.weight"]
        size, groups = kernel.shape[-1], values.shape[1] // kernel.shape[1]
        pads = []
        for side in (values.shape[3], values.shape[2]):
            total = max((math.ceil(side / stride) - 1) * stride + size - side, 0)
            pads += [total // 2, total - total // 2]
        values = F.conv2d(F.pad(values, pads), kernel, None, stride, 0, 1, groups)
        parts = [weights[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        values = F.batch_norm(values, parts[0], parts[1], parts[2], parts[3], training=False, eps=1e-3)
        return F.relu6(values) if bounded else values

    values = layer(pictures, "_conv_stem", "_bn0", 2)
    for at, stride in enumerate(_strides(1.0)):
        block, before = f"_blocks.{at}", values
        if f"{block}._expand_conv.weight" in weights:
            values = layer(values, f"{block}._expand_conv", f"{block}._bn0")
        values = layer(values, f"{block}._depthwise_conv", f"{block}._bn1", stride)
        values = layer(values, f"{block}._project_conv", f"{block}._bn2", bounded=False)
        if stride == 1 and before.shape[1] == values.shape[1]:
            values = values + before
    return layer(values, "_conv_head", "_bn1").mean(dim=(2, 3))


@pytest.mark.parametrize("size", [64, 75])
def test_the_network_is_what_its_authors_wrote(size: int) -> None:
    weights = random_weights()
    pictures = torch.randn(2, 3, size, size)
    with torch.no_grad():
        wanted, found = slow_features(weights, pictures), _features(_convolutions(weights, 1.0), pictures)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_strides_follow_the_published_depths() -> None:
    assert len(_strides(1.0)) == 16
    assert len(_strides(1.2)) == 21
    assert math.prod(_strides(1.2)) == 16  # and 2 of the stem: one place for 32 x 32 pixels


@pytest.fixture
def small_efficientnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with weights of the shape of EfficientNet-Lite0, drawn at random."""
    path = tmp_path / "weights.pth"
    torch.save(random_weights(), path)
    monkeypatch.setattr(efficientnets, "packaged", lambda *_, **__: path)
    monkeypatch.setattr(EfficientNetLite0, "pinned", None)
    return path


def pictures(count: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 24, 20), dtype=np.uint8)


@pytest.mark.usefixtures("small_efficientnet")
def test_photographs_become_rows_that_depend_on_themselves_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pretrained("efficientnet-lite0", size=64, columns=16, device="cpu")
    x = pictures(5)
    rows = made.transform(x)
    assert rows.shape == (5, 16)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    monkeypatch.setenv("MITHRIDATE_CACHE", "off")
    assert made.transform(x[3:4]).tobytes() == rows[3:4].tobytes()
    assert made.transform(x[::-1])[::-1].tobytes() == rows.tobytes()
    # The embedding is the mean of both images, each by the slow network.
    scaled = F.interpolate(torch.from_numpy(x).float(), (64, 64), mode="bicubic", antialias=True).clamp(0, 255)
    scaled = (scaled - 127) / 128
    with torch.no_grad():
        wanted = (slow_features(random_weights(), scaled) + slow_features(random_weights(), scaled.flip(-1))) / 2
    np.testing.assert_allclose(made.embeddings(x), wanted.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("small_efficientnet")
def test_a_mirror_image_has_the_row_of_the_image() -> None:
    made = pretrained("efficientnet-lite0", size=64, columns=16, device="cpu")
    x = np.random.default_rng(3).integers(0, 256, (2, 3, 64, 64), dtype=np.uint8)
    np.testing.assert_allclose(made.transform(x), made.transform(x[..., ::-1]), atol=1e-5)


def test_other_weights_are_refused(small_efficientnet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = pretrained("efficientnet-lite0", size=64, device="cpu")
    stored = json.loads(json.dumps(made.to_dict()))
    assert from_dict(stored).to_dict() == stored
    torch.save(random_weights(seed=1), small_efficientnet)
    with pytest.raises(ConfigError, match=r"have the SHA-256 .* and not"):
        from_dict(stored)
    monkeypatch.setattr(EfficientNetLite0, "pinned", "0" * 64)
    with pytest.raises(ConfigError, match="other weights are another encoder"):
        pretrained("efficientnet-lite0", device="cpu")


@pytest.mark.usefixtures("small_efficientnet")
@pytest.mark.parametrize(
    ("x", "match"),
    [
        (np.zeros((2, 3, 8, 8)), "takes 8-bit images"),
        (np.zeros((2, 8, 8, 3), dtype=np.uint8), "moveaxis"),
        (np.zeros((0, 3, 8, 8), dtype=np.uint8), "at least one image"),
        (["a text"], "takes 8-bit images"),
    ],
)
def test_what_is_no_image_is_refused(x: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        pretrained("efficientnet-lite0", device="cpu").transform(x)


@pytest.mark.parametrize(
    ("constants", "match"),
    [
        ({"size": 8}, "from 32 to 1024"),
        ({"mirrored": "yes"}, "true or false"),
        ({"denoise": 1.5}, "denoise in \\[0, 1\\]"),
        ({"columns": 0}, "at least 1"),
        ({"weights": "abc"}, "64 hexadecimal"),
        ({"trained_on": " "}, "in words"),
        ({"device": "gpu"}, "cpu, cuda"),
        ({"colour": 1}, "has no colour"),
    ],
)
@pytest.mark.usefixtures("small_efficientnet")
def test_constants_are_checked(constants: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        pretrained("efficientnet-lite0", **constants)


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EfficientNetLite0, "_file", ("no_such_package_here", "x.pth"))
    with pytest.raises(ConfigError, match=r"pip install 'mithridate\[vision\]'"):
        pretrained("efficientnet-lite0")
    assert not encoders.is_installed("efficientnet-lite0")


# --- ONNX ---------------------------------------------------------------------------------------------------------


def saved(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: dict[str, Any]) -> Path:
    """A network in a file."""
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def tensor(name: str, shape: list[Any], kind: int = 1) -> Any:
    return onnx.helper.make_tensor_value_info(name, kind, shape)


def rows_network(path: Path, batch: Any = "n", seed: int = 0) -> tuple[Path, Floats]:
    """X -> relu(x W), rows of 6 numbers to 4."""
    weights = np.random.default_rng(seed).normal(size=(6, 4)).astype(np.float32)
    make = onnx.helper.make_node
    nodes = [make("MatMul", ["x", "w"], ["h"]), make("Relu", ["h"], ["y"])]
    return saved(path, nodes, [tensor("x", [batch, 6])], [tensor("y", [batch, 4])], {"w": weights}), weights


def table(count: int, seed: int = 5) -> npt.NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=(count, 6))


def test_rows_through_an_onnx_file_are_those_of_numpy(tmp_path: Path) -> None:
    path, weights = rows_network(tmp_path / "net.onnx")
    made = pretrained(f"onnx:{path}", trained_on="nothing", licence="ours")
    x = table(9)
    wanted = np.maximum(x.astype(np.float32) @ weights, 0)
    np.testing.assert_allclose(made.embeddings(x), wanted, rtol=1e-5, atol=1e-6)
    norms = np.linalg.norm(wanted, axis=1, keepdims=True)
    unit = wanted / np.where(norms > 0, norms, 1)
    np.testing.assert_allclose(made.transform(x), unit, rtol=1e-4, atol=1e-5)
    (said,) = made.statements((6,), 2)
    assert said.id == "trusted-encoder"
    assert "net.onnx" in said
    assert f"sha256:{made.weights}" in said
    assert "trained on: nothing; licence: ours" in said


def test_a_network_that_mixes_a_batch_is_harmless_since_every_input_is_alone_in_it(tmp_path: Path) -> None:
    make = onnx.helper.make_node
    nodes = [make("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1), make("Sub", ["x", "m"], ["d"])]
    nodes += [make("Add", ["d", "one"], ["y"])]
    one = {"one": np.ones(6, dtype=np.float32)}
    alone = saved(tmp_path / "alone.onnx", nodes, [tensor("x", ["n", 6])], [tensor("y", ["n", 6])], one)
    x = table(5)
    np.testing.assert_array_equal(pretrained(f"onnx:{alone}").embeddings(x), np.ones((5, 6)))
    fixed = saved(tmp_path / "fixed.onnx", nodes, [tensor("x", [4, 6])], [tensor("y", [4, 6])], one)
    np.testing.assert_array_equal(pretrained(f"onnx:{fixed}").embeddings(x), np.ones((5, 6)))


def test_a_fixed_batch_that_does_not_mix_is_used(tmp_path: Path) -> None:
    path, weights = rows_network(tmp_path / "net.onnx", batch=4)
    made = pretrained(f"onnx:{path}")
    assert made.to_dict()["made_with"]["batch"] == 1
    np.testing.assert_allclose(
        made.embeddings(table(6)), np.maximum(table(6).astype(np.float32) @ weights, 0), rtol=1e-5, atol=1e-6
    )


def test_a_network_that_draws_random_numbers_is_refused(tmp_path: Path) -> None:
    make = onnx.helper.make_node
    nodes = [make("RandomNormalLike", ["x"], ["r"]), make("Add", ["x", "r"], ["y"])]
    path = saved(tmp_path / "net.onnx", nodes, [tensor("x", ["n", 6])], [tensor("y", ["n", 6])], {})
    with pytest.raises(ConfigError, match="random numbers"):
        pretrained(f"onnx:{path}").embeddings(table(3))


def test_weights_in_another_file_are_not_loaded(tmp_path: Path) -> None:
    path, _ = rows_network(tmp_path / "net.onnx")
    model = onnx.load(str(path))
    onnx.save(model, str(path), save_as_external_data=True, size_threshold=0, location="weights.bin")
    assert (tmp_path / "weights.bin").exists()
    with pytest.raises(ConfigError, match="as one file with all its weights"):
        pretrained(f"onnx:{path}").embeddings(table(3))


def test_pictures_through_an_onnx_file_are_scaled_and_averaged(tmp_path: Path) -> None:
    kernel = np.random.default_rng(1).normal(size=(5, 3, 3, 3)).astype(np.float32)
    nodes = [onnx.helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])]
    shapes = [tensor("x", ["n", 3, 16, 16])], [tensor("y", ["n", 5, 16, 16])]
    path = saved(tmp_path / "net.onnx", nodes, *shapes, {"w": kernel})
    x = np.random.default_rng(2).integers(0, 256, (3, 3, 16, 16), dtype=np.uint8)
    scaled = (torch.from_numpy(x).float() / 255 - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor(
        [0.229, 0.224, 0.225]
    )[:, None, None]
    wanted = F.conv2d(scaled, torch.from_numpy(kernel), padding=1).mean(dim=(2, 3))
    np.testing.assert_allclose(pretrained(f"onnx:{path}").embeddings(x), wanted, rtol=1e-3, atol=1e-4)
    assert pretrained(f"onnx:{path}").embeddings(pictures(2)).shape == (2, 5)  # of another size: stretched


def words_network(folder: Path) -> tuple[Path, Floats, dict[str, int]]:
    """Texts as the vectors of their words, with a tokenizer beside the file."""
    tokenizers = pytest.importorskip("tokenizers")
    words = "[UNK] goal team won league bank rates shares profit the a".split()
    vocabulary = {word: at for at, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    vectors = np.random.default_rng(3).normal(size=(len(words), 8)).astype(np.float32)
    nodes = [onnx.helper.make_node("Gather", ["v", "input_ids"], ["y"])]
    shapes = [tensor("input_ids", ["n", "t"], 7)], [tensor("y", ["n", "t", 8])]
    return saved(folder / "net.onnx", nodes, *shapes, {"v": vectors}), vectors, vocabulary


def news(count: int, seed: int = 0) -> tuple[list[str], npt.NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    kinds = ("goal team won league".split(), "bank rates shares profit".split())
    y = random.integers(0, 2, count)
    texts = [" ".join(["the", *random.choice(kinds[label], 3), f"x{random.integers(10**6)}"]) for label in y]
    return texts, y


def test_texts_through_an_onnx_file_are_means_of_pieces(tmp_path: Path) -> None:
    path, vectors, vocabulary = words_network(tmp_path)
    made = pretrained(f"onnx:{path}", tokens=3, pieces=2)
    texts = ["team won", "bank rates shares profit goal a the the", "", "\ud800 goal"]

    def unit(words: list[str]) -> Floats:
        mean = np.mean([vectors[vocabulary.get(word, 0)] for word in words], axis=0)
        return mean / np.linalg.norm(mean)

    found = made.embeddings(texts[:2] + texts[3:])
    np.testing.assert_allclose(found[0], unit(["team", "won"]), rtol=1e-5)
    pieces = [unit(["bank", "rates", "shares"]), unit(["profit", "goal", "a"])]
    np.testing.assert_allclose(found[1], np.mean(pieces, axis=0), rtol=1e-4, atol=1e-6)


def test_a_file_that_is_not_there_or_not_a_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no ONNX file"):
        pretrained(f"onnx:{tmp_path / 'none.onnx'}")
    (tmp_path / "bad.onnx").write_bytes(b"not a network")
    with pytest.raises(ConfigError, match="not a network that onnxruntime can load"):
        pretrained(f"onnx:{tmp_path / 'bad.onnx'}").embeddings(table(2))
    with pytest.raises(ConfigError, match="write onnx:SOURCE"):
        pretrained("onnx")
    with pytest.raises(ConfigError, match="takes rows of numbers"):
        pretrained(f"onnx:{rows_network(tmp_path / 'net.onnx')[0]}").transform(np.zeros((2, 3, 4)))
    with pytest.raises(ConfigError, match="cannot encode these inputs"):
        pretrained(f"onnx:{rows_network(tmp_path / 'net.onnx')[0]}").transform(np.zeros((2, 5)))


# --- transformers -------------------------------------------------------------------------------------------------


def small_bert(folder: Path) -> Path:
    transformers = pytest.importorskip("transformers")
    folder.mkdir()
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] goal team won league bank rates shares profit the".split()
    (folder / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    transformers.BertModel(config).save_pretrained(folder)
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def test_texts_through_transformers_are_means_over_tokens(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = small_bert(tmp_path / "bert")
    made = pretrained(f"transformers:{folder}", device="cpu", trained_on="nothing")
    texts, _ = news(6)
    rows = made.embeddings(texts)
    model, tokenizer = (kind.from_pretrained(folder) for kind in (transformers.AutoModel, transformers.AutoTokenizer))
    with torch.no_grad():
        wanted = model.eval()(**tokenizer(texts[2:3], return_tensors="pt")).last_hidden_state.mean(1)
    np.testing.assert_allclose(rows[2:3], wanted.numpy(), rtol=1e-4, atol=1e-5)
    stored = json.loads(json.dumps(made.to_dict()))
    assert from_dict(stored).to_dict() == stored
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    with pytest.raises(ConfigError, match="other weights are another encoder"):
        from_dict(stored)


def test_pictures_through_transformers_are_what_it_pools(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=16
    )
    transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    made = pretrained(f"transformers:{tmp_path / 'vit'}", device="cpu", mirrored=False)
    x = np.random.default_rng(2).integers(0, 256, (3, 3, 32, 32), dtype=np.uint8)
    rows = made.embeddings(x)
    model = transformers.AutoModel.from_pretrained(tmp_path / "vit").eval()
    mean, deviation = (torch.tensor(each)[:, None, None] for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    with torch.no_grad():
        wanted = model((torch.from_numpy(x).float() / 255 - mean) / deviation).pooler_output
    np.testing.assert_allclose(rows, wanted.numpy(), rtol=1e-3, atol=1e-4)


def test_a_name_that_the_hub_does_not_give_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    pytest.importorskip("transformers")

    def refuse(*_: Any, **__: Any) -> str:
        raise OSError("there is no network")

    monkeypatch.setattr(hub, "snapshot_download", refuse)
    with pytest.raises(ConfigError, match="download it where there is a network"):
        pretrained("transformers:somebody/something")


def test_a_folder_without_a_network_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"config\.json or model\.safetensors is missing"):
        pretrained(f"transformers:{tmp_path / 'empty'}")


# --- torchvision --------------------------------------------------------------------------------------------------


class _SmallNet(torch.nn.Module):
    """A classifier as torchvision has them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.features = torch.nn.Conv2d(3, 12, 3)
        self.fc = torch.nn.Linear(12, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.features(x).relu().mean(dim=(2, 3)))


@pytest.fixture
def stand_in_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the encoder calls of torchvision; tests/gpu_checks.py has the real one."""
    import sys
    import types

    library, models = types.ModuleType("torchvision"), types.ModuleType("torchvision.models")
    models.list_models = lambda module=None: ["small"]  # type: ignore[attr-defined]
    models.get_model = lambda name, weights=None: _SmallNet()  # type: ignore[attr-defined]
    library.models = models  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", library)
    monkeypatch.setattr("mithridate.features.torch_hubs.version_of", lambda name: "1")


@pytest.mark.usefixtures("stand_in_torchvision")
def test_a_classifier_of_torchvision_is_used_up_to_its_last_layer(tmp_path: Path) -> None:
    network = _SmallNet().eval()
    torch.save(network.state_dict(), tmp_path / "small.pth")
    made = pretrained(
        "torchvision:small", file=str(tmp_path / "small.pth"), size=16, device="cpu", columns=5, mirrored=False
    )
    x = np.random.default_rng(2).integers(0, 256, (3, 3, 16, 16), dtype=np.uint8)
    mean, deviation = (torch.tensor(each)[:, None, None] for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    with torch.no_grad():
        wanted = (
            network.features((torch.from_numpy(x).float() / 255 - mean) / deviation).relu().mean(dim=(2, 3)).numpy()
        )
    np.testing.assert_allclose(made.embeddings(x), wanted, rtol=1e-3, atol=1e-4)
    last = network.fc.weight.detach().double().numpy()
    directions = np.linalg.svd(last - last.mean(axis=0))[2][:5]
    projected = np.abs(wanted @ directions.T)
    np.testing.assert_allclose(
        np.abs(made.transform(x)), projected / np.linalg.norm(projected, axis=1, keepdims=True), atol=1e-3
    )
    with pytest.raises(ConfigError, match="has no classifier 'smal'"):
        pretrained("torchvision:smal", device="cpu")
    (tmp_path / "other.pth").write_bytes((tmp_path / "small.pth").read_bytes()[:50])
    with pytest.raises(ConfigError, match="There is no file"):
        pretrained("torchvision:small", file=str(tmp_path / "none.pth"), device="cpu")


# --- what a run depends on ----------------------------------------------------------------------------------------


def test_the_same_rows_come_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = rows_network(tmp_path / "net.onnx")
    made = pretrained(f"onnx:{path}")
    x = table(30)
    rows = made.embeddings(x)
    monkeypatch.setattr(Onnx, "_machine", lambda self: pytest.fail("it was computed again"))
    assert made.embeddings(x[10:20]).tobytes() == rows[10:20].tobytes()
    with pytest.raises(pytest.fail.Exception):
        made.embeddings(table(1, seed=9))


def test_another_computer_device_or_version_is_refused(tmp_path: Path) -> None:
    path, _ = rows_network(tmp_path / "net.onnx")
    stored = pretrained(f"onnx:{path}").to_dict()
    for name, value in (("device", "cuda"), ("computer", "another"), ("batch", 7), ("versions", {"onnxruntime": "1"})):
        other = {**stored, "made_with": {**stored["made_with"], name: value}}
        with pytest.raises(ConfigError, match=f"encoded with {name} ="):
            from_dict(other)


def test_what_changes_a_bit_is_in_the_key_of_the_store(tmp_path: Path) -> None:
    path, _, _ = words_network(tmp_path)
    first = pretrained(f"onnx:{path}").identity()
    assert pretrained(f"onnx:{path}", tokens=9).identity() != first
    assert pretrained(f"onnx:{path}", trained_on="something").identity() == first


def test_inserted_examples_change_no_other_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MITHRIDATE_CACHE", "off")
    path, _, _ = words_network(tmp_path)
    made = pretrained(f"onnx:{path}")
    texts, _ = news(25)
    rows = made.transform(texts)
    more = made.transform(["goal " * 300, *texts[:13], "", *texts[13:]])
    assert np.delete(more, [0, 14], axis=0).tobytes() == rows.tobytes()


# --- calibration --------------------------------------------------------------------------------------------------


def test_a_calibration_centres_and_turns_by_its_inputs_alone(tmp_path: Path) -> None:
    path, weights = rows_network(tmp_path / "net.onnx")
    trusted, x = table(80, seed=7), table(20, seed=8)
    made = pretrained(f"onnx:{path}", columns=2, whitening=0.5).calibrated(trusted)
    embedded = np.maximum(trusted.astype(np.float32) @ weights, 0).astype(np.float64)
    centre = embedded.mean(axis=0)
    _, deviations, directions = np.linalg.svd(embedded - centre)
    directions = directions[:2] / np.sqrt(deviations[:2, None])
    projected = (np.maximum(x.astype(np.float32) @ weights, 0) - centre) @ directions.T
    wanted = projected / np.linalg.norm(projected, axis=1, keepdims=True)
    np.testing.assert_allclose(np.abs(made.transform(x)), np.abs(wanted), atol=1e-3)
    assert made.transform(x[:1]).tobytes() == made.transform(x)[:1].tobytes()
    (said,) = made.statements((6,), 2)
    assert "80 trusted inputs" in said


def test_a_calibration_is_kept_with_the_run_and_refused_when_it_is_another(tmp_path: Path) -> None:
    path, _ = rows_network(tmp_path / "net.onnx")
    made = pretrained(f"onnx:{path}", columns=2).calibrated(table(80, seed=7))
    made.keep(tmp_path)
    stored = json.loads(json.dumps(made.to_dict()))
    again = from_dict(stored, folder=tmp_path)
    assert again.transform(table(5)).tobytes() == made.transform(table(5)).tobytes()
    pretrained(f"onnx:{path}", columns=2).calibrated(table(80, seed=9)).keep(tmp_path)
    with pytest.raises(ArtifactError, match="not the calibration of this run"):
        from_dict(stored, folder=tmp_path)
    (tmp_path / Calibration.FILE).unlink()
    with pytest.raises(ArtifactError):
        from_dict(stored, folder=tmp_path)


def test_a_calibration_on_training_inputs_is_a_condition(tmp_path: Path) -> None:
    path, _ = rows_network(tmp_path / "net.onnx")
    x = table(100)
    made = pretrained(f"onnx:{path}").calibrated(x[:50])
    assert not made.looks(table(100, seed=77))
    (said,) = made.looks(x[20:])
    assert said.id == "tuned-on-training-data"
    assert "30 of the 50" in said


def test_too_few_trusted_inputs_are_refused(tmp_path: Path) -> None:
    path, _ = rows_network(tmp_path / "net.onnx")
    with pytest.raises(ConfigError, match="too few for 3 columns"):
        pretrained(f"onnx:{path}", columns=3).calibrated(table(3))
    with pytest.raises(ConfigError, match="no directions of its own"):
        pretrained(f"onnx:{path}", columns=3).transform(table(3))


# --- doors --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Certificates will be weak")
@pytest.mark.parametrize("method", ["nearest-neighbours", "kernel-vote", "dpa", "fdp"])
def test_every_kind_of_defence_certifies_on_an_encoder_and_says_that_it_is_trusted(tmp_path: Path, method: str) -> None:
    path, _, _ = words_network(tmp_path)
    texts, y = news(120)
    few = {"dpa": {"partitions": 6}, "fdp": {"instances": 20}}.get(method, {})
    classifier = CertifiedClassifier(method, features=f"onnx:{path}", classes=[0, 1], device="cpu", **few)
    classifier.fit(texts, y)
    more, truth = news(30, seed=1)
    certificate = classifier.certify(more, truth)
    assert np.mean(classifier.predict(more) == truth) > 0.9
    assert "trusted-encoder" in [each.id for each in certificate.conditions]
    assert [each.id for each in conditions_of(certificate.assumptions)].count("trusted-encoder") == 1


@pytest.mark.usefixtures("small_efficientnet")
def test_an_estimator_takes_photographs() -> None:
    # All that a network of random weights sees is nearly the same, until it is calibrated.
    features = pretrained("efficientnet-lite0", size=32, columns=8, device="cpu").calibrated(pictures(20, seed=1))
    x, y = pictures(12), np.arange(12) % 2
    classifier = CertifiedClassifier("nearest-neighbours", neighbours=1, features=features, classes=[0, 1])
    assert classifier.fit(x, y).score(x, y) == 1.0  # each is its own nearest neighbour


def run_cli(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any] | None, str]:
    status = main(["--json", *words] if words[0] == "--json" else [*words, "--json"])
    out, err = capsys.readouterr()
    return status, json.loads(out) if out.strip() else None, err


def write_news(folder: Path, name: str, count: int, seed: int) -> Path:
    texts, y = news(count, seed)
    lines = ["text,kind", *(f"{text},{('sport', 'money')[label]}" for text, label in zip(texts, y, strict=True))]
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


PROJECT = """
[data]
train = "news.csv"
kind = "table"
label = "kind"
classes = ["money", "sport"]

[[data.columns]]
name = "text"
kind = "text"

[train]
features = "onnx:nets/net.onnx"
"""


@pytest.mark.parametrize("method", ["nearest-neighbours", "fdp"])
def test_from_the_command_line_files_are_found_beside_the_project(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    words_network(tmp_path / "nets")
    write_news(tmp_path, "news.csv", 150, 0)
    new = write_news(tmp_path, "new.csv", 8, 1)
    write_news(tmp_path, "trusted.csv", 60, 2)
    (tmp_path / "news.toml").write_text(PROJECT + 'calibrate = "trusted.csv"\n')
    run_dir = str(tmp_path / "run")
    more = ["--instances", "20"] if method == "fdp" else []
    words = ["train", str(tmp_path / "news.toml"), "--method", method, "--run-dir", run_dir, "--device", "cpu", *more]
    status, said, err = run_cli(capsys, *words)
    assert status == 0, err
    assert said is not None
    assert [each["id"] for each in said["conditions"]] == ["trusted-encoder"]
    assert "60 trusted inputs" in said["conditions"][0]["sentence"]
    assert said["recipe"]["features"]["calibration"]["inputs"] == 60
    status, said, err = run_cli(capsys, "predict", run_dir, str(new))
    assert status == 0, err
    assert said is not None
    assert said["conditional"]
    status, _, err = run_cli(capsys, "certify", run_dir)
    assert status == 0, err
    status, said, err = run_cli(capsys, "verify", run_dir)
    assert status == 0, err
    assert "trusted-encoder" in json.dumps(said)
    # Another network under the same name is refused.
    words_network(tmp_path / "nets")[0].write_bytes(rows_network(tmp_path / "other.onnx", seed=3)[0].read_bytes())
    status, _, err = run_cli(capsys, "predict", run_dir, str(new))
    assert status == 2
    assert "other weights are another encoder" in err


def test_a_calibration_needs_an_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_news(tmp_path, "news.csv", 50, 0)
    (tmp_path / "news.toml").write_text(PROJECT.replace("onnx:nets/net.onnx", "hashed-words"))
    status, _, err = run_cli(capsys, "train", str(tmp_path / "news.toml"), "--calibrate", str(tmp_path / "news.csv"))
    assert status == 2
    assert "--calibrate is for the features of a pretrained encoder" in err


def test_paths_of_encoders_are_beside_the_file_that_names_them(tmp_path: Path) -> None:
    assert beside("hashed-words", tmp_path) == "hashed-words"
    assert beside({"name": "onnx:a.onnx", "tokens": 3}, tmp_path) == {
        "name": f"onnx:{tmp_path / 'a.onnx'}",
        "tokens": 3,
    }
    assert beside({"name": "onnx", "source": "a.onnx"}, tmp_path)["source"] == str(tmp_path / "a.onnx")
    assert beside("transformers:some/name", tmp_path) == "transformers:some/name"
    (tmp_path / "bert").mkdir()
    assert beside("transformers:bert", tmp_path) == f"transformers:{tmp_path / 'bert'}"


@pytest.mark.parametrize("installed", [True, False])
def test_init_proposes_an_encoder_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], installed: bool
) -> None:
    monkeypatch.setattr("mithridate.data.proposing.is_installed", lambda name: installed and name == "minilm")
    source = write_news(tmp_path, "news.csv", 60, 0)
    status, said, err = run_cli(capsys, "init", str(source), "--label", "kind", "-o", str(tmp_path / "news.toml"))
    assert status == 0, err
    assert said is not None
    assert said["features"] == ("minilm" if installed else None)
    text = (tmp_path / "news.toml").read_text()
    assert ('\nfeatures = "minilm"' in text) == installed
    assert ("trusted-encoder" in text) == installed


def test_photographs_are_kept_large_enough_for_an_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    for name in ("cat/a.png", "dog/b.png"):
        (tmp_path / name).parent.mkdir()
        Image.new("RGB", (400, 300)).save(tmp_path / name)
    monkeypatch.setattr("mithridate.data.proposing.is_installed", lambda name: name == "efficientnet-lite2")
    found = look(tmp_path)
    assert found.features == "efficientnet-lite2"
    assert found.declaration.to_dict()["size"] == [168, 224]
    monkeypatch.setattr("mithridate.data.proposing.is_installed", lambda name: False)
    assert look(tmp_path).declaration.to_dict()["size"] == [48, 64]


# --- attacks ------------------------------------------------------------------------------------------------------


def test_weights_that_change_after_they_were_hashed_are_refused(tmp_path: Path) -> None:
    path, _ = rows_network(tmp_path / "net.onnx")
    made = pretrained(f"onnx:{path}")
    rows_network(path, seed=9)
    with pytest.raises(ConfigError, match="were changed since"):
        made.embeddings(table(3))
    text, _, _ = words_network(tmp_path / "words")
    made = pretrained(f"onnx:{text}", tokens=17)  # one that no other test has loaded
    tokenizer = tmp_path / "words" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"goal":1', '"goal":2').replace('"goal": 1', '"goal": 2'))
    with pytest.raises(ConfigError, match="were changed since"):
        made.embeddings(["goal"])


def test_weights_in_another_file_are_not_found_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = rows_network(tmp_path / "net.onnx")
    onnx.save(onnx.load(str(path)), str(path), save_as_external_data=True, size_threshold=0, location="weights.bin")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="as one file with all its weights"):
        pretrained("onnx:net.onnx").embeddings(table(3))


def test_weights_that_a_library_would_draw_at_random_are_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=16
    )
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(config)  # which has no pooling layer
    model.save_pretrained(tmp_path / "vit")
    x = np.random.default_rng(2).integers(0, 256, (2, 3, 32, 32), dtype=np.uint8)
    made = pretrained(f"transformers:{tmp_path / 'vit'}", device="cpu", mirrored=False)
    mean, deviation = (torch.tensor(each)[:, None, None] for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    with torch.no_grad():
        wanted = model.eval().vit((torch.from_numpy(x).float() / 255 - mean) / deviation).last_hidden_state[:, 0]
    np.testing.assert_allclose(made.embeddings(x), wanted.numpy(), rtol=1e-3, atol=1e-4)
    from safetensors.torch import load_file, save_file

    weights = load_file(tmp_path / "vit" / "model.safetensors")
    weights.pop(next(name for name in weights if "layernorm_after.weight" in name))
    save_file(weights, tmp_path / "vit" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="they would be random numbers"):
        pretrained(f"transformers:{tmp_path / 'vit'}", device="cpu").embeddings(x)


def test_all_files_of_a_folder_count(tmp_path: Path) -> None:
    folder = small_bert(tmp_path / "bert")
    before = pretrained(f"transformers:{folder}", device="cpu").weights
    (folder / "sub").mkdir()
    (folder / "sub" / "more.safetensors").write_bytes(b"x")
    assert pretrained(f"transformers:{folder}", device="cpu").weights != before
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="adapter"):
        pretrained(f"transformers:{folder}", device="cpu")


@pytest.mark.usefixtures("small_efficientnet")
def test_settings_that_change_bits_are_overruled_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MITHRIDATE_CACHE", "off")
    made = pretrained("efficientnet-lite0", size=32, device="cpu")
    x = pictures(2)
    rows = made.embeddings(x)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert made.embeddings(x).tobytes() == rows.tobytes()
    # What nothing overrules is found by the probe.
    monkeypatch.setattr(type(made), "_probe_now", lambda self: ("another", 1280))
    with pytest.raises(ConfigError, match="a setting of a library was changed"):
        made.embeddings(x)


def test_what_is_hashed_alike_is_encoded_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MITHRIDATE_CACHE", "off")
    path, _, _ = words_network(tmp_path / "words")
    made = pretrained(f"onnx:{path}")
    assert made.embeddings(["goal\0"]).tobytes() == made.embeddings(["goal\0", "goal"])[:1].tobytes()
    rows = pretrained(f"onnx:{rows_network(tmp_path / 'net.onnx')[0]}")
    near = np.full((2, 6), 2**60 + 2**36, dtype=np.int64)
    near[1] += 1
    assert rows.embeddings(near)[::-1].tobytes() == rows.embeddings(near[::-1]).tobytes()


def test_a_text_alone_is_as_wide_as_itself() -> None:
    from mithridate.features import Frozen

    def width(rows: npt.NDArray[Any]) -> Floats:
        return np.full((len(rows), 2), rows.dtype.itemsize, dtype=np.float32)

    made = Frozen(width, title="it", trained_on="nothing")
    alone, beside_others = made.transform(np.array(["abc"])), made.transform(np.array(["abc", "abcdefgh"]))
    np.testing.assert_array_equal(alone, beside_others[:1])


def test_a_function_cannot_change_the_inputs() -> None:
    from mithridate.features import Frozen

    def spoil(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        rows /= rows.max()
        return rows

    x = np.abs(table(4)) + 1
    before = x.copy()
    Frozen(spoil, title="it", trained_on="nothing").transform(x)
    np.testing.assert_array_equal(x, before)


def test_a_calibration_is_recognised_in_other_clothes(tmp_path: Path, small_efficientnet: Path) -> None:
    made = pretrained(f"onnx:{rows_network(tmp_path / 'net.onnx')[0]}").calibrated(table(50).astype(np.float32))
    assert [each.id for each in made.looks(table(50))] == ["tuned-on-training-data"]
    grey = np.random.default_rng(1).integers(0, 256, (20, 16, 16), dtype=np.uint8)
    made = pretrained("efficientnet-lite0", size=32, device="cpu", columns=4).calibrated(grey)
    assert [each.id for each in made.looks(np.repeat(grey[:, None], 3, axis=1))] == ["tuned-on-training-data"]
    many = pretrained(f"onnx:{rows_network(tmp_path / 'net.onnx')[0]}").calibrated(
        np.concatenate([np.repeat(table(1), 90, axis=0), table(10, seed=3)])
    )
    assert "90 of the 100" in many.looks(table(5))[0]
    few = pretrained(f"onnx:{tmp_path / 'net.onnx'}").calibrated(np.concatenate([table(1), table(199, seed=3)]))
    (said,) = few.looks(table(5))
    assert said.id is None


def test_rows_of_another_encoder_are_not_taken_for_its_own(tmp_path: Path) -> None:
    hashes, rows = some_rows(3)
    RowStore(tmp_path, {"weights": "a"}).add(hashes, rows)
    RowStore(tmp_path, {"weights": "b"})
    (file,) = tmp_path.glob("rows-*/*.npz")
    other = next(folder for folder in tmp_path.glob("rows-*") if folder != file.parent)
    (other / file.name).write_bytes(file.read_bytes())
    (other / file.name).chmod(0o600)
    assert not RowStore(tmp_path, {"weights": "b"}).find(hashes)[1].any()


def test_a_tokenizer_that_draws_random_numbers_is_refused(tmp_path: Path) -> None:
    path, _, _ = words_network(tmp_path)
    file = tmp_path / "tokenizer.json"
    said = json.loads(file.read_text())
    said["model"]["dropout"] = 0.1
    file.write_text(json.dumps(said))
    with pytest.raises(ConfigError, match="dropout"):
        pretrained(f"onnx:{path}").embeddings(["goal"])


def _encode_in_child(path: str, rows: Any, queue: Any) -> None:
    queue.put(pretrained(f"onnx:{path}").embeddings(rows).tobytes())


def test_a_process_that_was_forked_encodes_as_well(tmp_path: Path) -> None:
    path, _ = rows_network(tmp_path / "net.onnx")
    wanted = pretrained(f"onnx:{path}").embeddings(table(3))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_encode_in_child, args=(str(path), table(4), queue))
    child.start()
    found = queue.get(timeout=60)
    child.join()
    assert found[: wanted.nbytes] == wanted.tobytes()


def test_two_outputs_of_one_file_are_two_encoders(tmp_path: Path) -> None:
    make = onnx.helper.make_node
    weights = {"a": np.ones((6, 3), dtype=np.float32), "b": np.ones((6, 5), dtype=np.float32)}
    nodes = [make("MatMul", ["x", "a"], ["y"]), make("MatMul", ["x", "b"], ["z"])]
    outputs = [tensor("y", ["n", 3]), tensor("z", ["n", 5])]
    path = saved(tmp_path / "net.onnx", nodes, [tensor("x", ["n", 6])], outputs, weights)
    assert pretrained(f"onnx:{path}", output="y").transform(table(2)).shape == (2, 3)
    assert pretrained(f"onnx:{path}", output="z").transform(table(2)).shape == (2, 5)
    with pytest.raises(ConfigError, match="has no output 'q'"):
        pretrained(f"onnx:{path}", output="q").transform(table(2))


@pytest.mark.parametrize(
    ("constants", "x", "match"),
    [
        ({}, [], "at least one text"),
        ({"device": "cuda"}, ["a"], "on the CPU"),
        ({"batch": 4}, ["a"], "leave batch out"),
        ({"calibration": {}}, ["a"], "what calibrated"),
        ({"made_with": "x"}, ["a"], "as a table"),
    ],
)
def test_what_does_not_fit_a_text_encoder_is_an_error_in_words(
    tmp_path: Path, constants: dict[str, Any], x: Any, match: str
) -> None:
    path, _, _ = words_network(tmp_path)
    with pytest.raises(ConfigError, match=match):
        pretrained(f"onnx:{path}", **constants).transform(x)


def test_numbers_of_numpy_are_taken(tmp_path: Path) -> None:
    path, _, _ = words_network(tmp_path)
    made = pretrained(f"onnx:{path}", tokens=np.int64(3), whitening=np.float64(0.5))
    assert json.loads(json.dumps(made.to_dict()))["tokens"] == 3


def test_a_run_is_used_from_any_folder_and_a_moved_file_is_accepted_by_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_network(tmp_path / "net.onnx")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    x, y = table(60), np.arange(60) % 2
    kind = defence("nearest-neighbours", features="onnx:net.onnx", neighbours=5, classes=2)
    kind.train((x, y), x[:5], run_dir=tmp_path / "run")
    monkeypatch.chdir(tmp_path / "elsewhere")
    from mithridate import predict

    first = predict(tmp_path / "run", x[5:9])
    (tmp_path / "net.onnx").rename(tmp_path / "elsewhere" / "moved.onnx")
    with pytest.raises(ConfigError, match="There is no ONNX file"):
        predict(tmp_path / "run", x[5:9])
    again = predict(tmp_path / "run", x[5:9], features=encoder("onnx:moved.onnx"))
    np.testing.assert_array_equal(first.counts, again.counts)


# --- other encoders of the user's ---------------------------------------------------------------------------------


def test_a_function_that_encodes_inputs_together_is_conditional_on_its_rounding() -> None:
    from mithridate.features import Frozen

    x, y = table(40), np.arange(40) % 2
    ids = {}
    for batch_size in (1, 8):
        features = Frozen(lambda rows: rows * 2.0, title="it", trained_on="nothing", batch_size=batch_size)
        votes = defence("nearest-neighbours", features=features, neighbours=3, classes=2).train((x, y), x[:5])
        ids[batch_size] = [each.id for each in certify(votes).conditions]
    assert ids == {1: ["trusted-encoder"], 8: ["trusted-encoder", "encoder-rounding"]}


def test_a_function_that_is_none_is_refused_alone() -> None:
    from mithridate.features import Frozen

    random = np.random.default_rng(0)
    features = Frozen(lambda rows: rows + random.normal() * 1e-7, title="it", trained_on="nothing")
    with pytest.raises(ConfigError, match="other numbers when it encoded the same inputs again"):
        features.transform(table(5))


# --- the weights of the registry's packages -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["efficientnet-lite2", "efficientnet-lite0"])
def test_the_published_weights_know_what_they_see(name: str) -> None:
    if not encoders.is_installed(name):
        pytest.skip("the extra vision is not installed")
    made = pretrained(name, device="cpu")
    stripes = np.zeros((2, 3, 64, 64), dtype=np.uint8)
    stripes[0, :, ::8], stripes[1, :, :, ::8] = 255, 255
    rows = made.transform(stripes)
    assert rows.shape == (2, 256)
    assert rows[0] @ rows[1] < 0.99
    # Constants that follow from the weights are the same on every machine.
    wanted = {"efficientnet-lite2": "5bd3552f34c9292e", "efficientnet-lite0": None}[name]
    assert wanted is None or made.to_dict()["conditioning"].startswith(wanted)


@pytest.mark.parametrize("name", ["minilm", "wordllama"])
def test_texts_that_mean_the_same_are_near(name: str) -> None:
    if not encoders.is_installed(name):
        pytest.skip("the extra text is not installed")
    cat, kitten, shares = pretrained(name).transform(
        ["The cat sat on the mat.", "A kitten was sitting on a rug.", "Shares fell sharply on Monday."]
    )
    assert cat @ kitten > cat @ shares + 0.2

"""Images: files to arrays by fixed rules, each by itself, and broken files refused by name."""

import io
import os
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mithridate import ArtifactError, ConfigError, MithridateError
from mithridate.data import Arrays, Images, Number, Table, Text, propose, read
from mithridate.data.images import SUFFIXES, from_pictures, list_folder

Image = pytest.importorskip("PIL.Image")


def picture(seed: int, size: tuple[int, int] = (6, 8), channels: int = 3) -> np.ndarray:
    shape = size if channels == 1 else (*size, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save(path: Path, pixels: np.ndarray, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    for i, name in enumerate(["dog/1.png", "dog/0.png", "cat/b.bmp", "cat/a.PNG"]):
        save(tmp_path / name, picture(i))
    return tmp_path


# --- what comes out -------------------------------------------------------------------------------------------------


def test_images_in_the_order_of_their_paths(pets: Path) -> None:
    (pets / "cat" / "readme.txt").write_text("no image")
    (pets / "cat" / ".hidden.png").write_text("no image")
    (pets / ".git").mkdir()
    found = read(pets, Images((6, 8), classes=("cat", "dog", "emu")), labels=True)
    assert found.ids == ("cat/a.PNG", "cat/b.bmp", "dog/0.png", "dog/1.png")
    assert found.x.dtype == np.uint8
    assert found.x.shape == (4, 3, 6, 8)
    np.testing.assert_array_equal(found.x, [np.moveaxis(picture(i), -1, 0) for i in (3, 2, 1, 0)])
    assert np.asarray(found.y).tolist() == [0, 0, 1, 1]
    assert found.class_names == ("cat", "dog", "emu")
    assert found.notes == (
        "Files that are no images by their names were ignored: 1.",
        "No images were found of the classes emu.",
    )
    assert found.assumptions == ()


def test_classes_that_are_not_declared_are_assumed(pets: Path) -> None:
    found = read(pets, Images((6, 8)), labels=True)
    assert found.class_names == ("cat", "dog")
    assert found.assumptions == (
        "The classes (cat, dog) were read off the training data; the certificate assumes that this is public and "
        "fixed.",
    )


def test_a_folder_without_classes_and_a_single_image(pets: Path) -> None:
    found = read(pets / "dog", Images((6, 8)))
    assert found.y is None
    assert found.ids == ("0.png", "1.png")
    one = read(pets / "dog" / "1.png", Images((6, 8)))
    np.testing.assert_array_equal(one.x[0], found.x[1])
    without = read(pets, Images((6, 8)), labels=False)
    assert without.y is None
    assert len(without.x) == 4


def test_an_image_does_not_depend_on_the_others(pets: Path) -> None:
    declared = Images((5, 3), 1)
    before = read(pets, declared, labels=True).x
    save(pets / "cat" / "aa.png", picture(9, (40, 40)))
    after = read(pets, declared, labels=True).x
    np.testing.assert_array_equal(after[[0, 2, 3, 4]], before)


def slow_resize(plane: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Weighted means by a triangle around each new pixel's centre, wide enough to reach all old pixels."""
    for axis, wanted in enumerate(size):
        old = plane.shape[axis]
        reach = max(1.0, old / wanted)
        weights = np.zeros((wanted, old))
        for i in range(wanted):
            centre = (i + 0.5) * old / wanted
            for j in range(old):
                weights[i, j] = max(0.0, 1 - abs(j + 0.5 - centre) / reach)
        plane = np.moveaxis(np.tensordot(weights / weights.sum(axis=1, keepdims=True), plane, (1, axis)), 0, axis)
    return plane


@pytest.mark.parametrize("size", [(3, 3), (6, 8), (12, 5), (1, 1), (20, 30)])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_stretched_to_the_size(tmp_path: Path, size: tuple[int, int], channels: int) -> None:
    pixels = picture(0, (6, 8), channels)
    found = read(save(tmp_path / "a.png", pixels), Images(size, channels)).x[0]
    planes = pixels[None] if channels == 1 else np.moveaxis(pixels, -1, 0)
    expected = np.stack([slow_resize(plane.astype(float), size) for plane in planes])
    assert found.shape == (channels, *size)
    assert np.abs(found - expected).max() <= 1.5  # rounded once per direction


def test_grey_colour_palettes_and_transparency(tmp_path: Path) -> None:
    grey = save(tmp_path / "grey.png", np.full((4, 4), 77, np.uint8))
    assert (read(grey, Images((4, 4), 3)).x == 77).all()
    colour = save(tmp_path / "red.png", np.full((4, 4, 3), (255, 0, 0), np.uint8))
    assert (read(colour, Images((4, 4), 1)).x == 76).all()  # 0.299 of 255, as ITU-R 601 has it
    Image.fromarray(np.full((4, 4, 4), (9, 8, 7, 0), np.uint8), "RGBA").save(tmp_path / "clear.png")
    assert read(tmp_path / "clear.png", Images((1, 1))).x.ravel().tolist() == [9, 8, 7]
    Image.fromarray(np.eye(4, dtype=np.uint8) * 255).convert("1").save(tmp_path / "bits.png")
    assert read(tmp_path / "bits.png", Images((4, 4), 1)).x[0, 0].tolist() == (np.eye(4) * 255).tolist()


def test_photographs_are_turned_upright(tmp_path: Path) -> None:
    pixels = picture(1, (4, 7), 1)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    save(tmp_path / "a.png", pixels, exif=exif)
    np.testing.assert_array_equal(read(tmp_path / "a.png", Images((7, 4), 1)).x[0, 0], np.rot90(pixels, -1))


def test_arrays_that_are_images_already() -> None:
    pixels = np.stack([picture(i) for i in range(3)])
    first = np.moveaxis(pixels, -1, 1)
    for x in (pixels, first):
        np.testing.assert_array_equal(read((x, [0, 1, 1]), Images((6, 8))).x, first)
    np.testing.assert_array_equal(read(pixels[..., 0], Images((6, 8), 1)).x, first[:, :1])
    for bad in (pixels.astype(float), pixels[:, :5], first[:, :2]):
        with pytest.raises(ConfigError, match="8-bit arrays of shape"):
            read(bad, Images((6, 8)))


# --- what is refused ------------------------------------------------------------------------------------------------


def png_that_claims(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


def encoded(kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(picture(0, (16, 16))).save(stream, kind, **options)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is not a readable image"),
        (b"text", "is not a readable image"),
        (encoded("PNG")[:-200], "is a broken image"),
        (encoded("JPEG")[:200], "image"),
        (png_that_claims(9000, 9000), "claims more than 67,108,864 pixels"),
        (png_that_claims(60000, 60000), "claims more than 67,108,864 pixels"),
        (encoded("PPM"), "is not a readable image"),  # a decoder that is not asked
    ],
    ids=["empty", "text", "short png", "short jpeg", "large", "huge", "ppm"],
)
def test_a_broken_image_is_named(pets: Path, data: bytes, says: str) -> None:
    (pets / "cat" / "z.png").write_bytes(data)
    with pytest.raises(ArtifactError) as caught:
        read(pets, Images((6, 8)), labels=True)
    assert str(pets / "cat" / "z.png") in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_images_of_more_than_8_bits(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(ArtifactError, match="save it with 8 bits"):
        read(tmp_path / "a.png", Images((4, 4)))


def test_folders_that_are_refused(pets: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(ConfigError, match=r"declare their size and channels, such as Images\(size=\(32, 32\)\)"):
        read(pets)
    with pytest.raises(ConfigError, match="declare their size"):
        read(pets, Arrays())
    with pytest.raises(ConfigError, match=r"cat/a.PNG is 'cat', which is not among the classes dog, emu"):
        read(pets, Images((6, 8), classes=("dog", "emu")), labels=True)
    with pytest.raises(ConfigError, match="one folder per class"):
        read(pets / "dog", Images((6, 8)), labels=True)
    with pytest.raises(ConfigError, match="more than one image"):
        read(pets / "dog" / "1.png", Images((6, 8)), labels=True)
    save(pets / "stray.png", picture(0))
    with pytest.raises(ConfigError, match=r"images beside folders of images, such as 'stray.png'"):
        read(pets, Images((6, 8)))
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(ArtifactError, match="holds no images"):
        read(empty, Images((6, 8)))
    (empty / "cat").mkdir()
    with pytest.raises(ArtifactError, match="holds no images"):
        read(empty, Images((6, 8)))
    save(empty / "cat" / "1.png", picture(0))
    for declared in (Images((6, 8)), Images((6, 8), classes=("cat", "dog"))):
        with pytest.raises(ConfigError, match="All examples have the label 'cat'"):
            read(empty, declared, labels=True)


def test_what_is_no_plain_file_is_left_alone(pets: Path) -> None:
    if hasattr(os, "mkfifo"):
        os.mkfifo(pets / "cat" / "pipe.png")  # opening it would wait for ever
    (pets / "loop").symlink_to(pets, target_is_directory=True)
    (pets / "cat" / "gone.png").symlink_to(pets / "nowhere.png")
    with pytest.raises(ArtifactError, match="no file"):
        read(pets / "cat" / "gone.png", Images((6, 8)))
    assert len(list_folder(pets).names) == 4


def test_a_folder_that_may_not_be_read(pets: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    (pets / "cat").chmod(0)
    try:
        with pytest.raises(ArtifactError, match="Check its permissions"):
            read(pets, Images((6, 8)))
    finally:
        (pets / "cat").chmod(0o700)


def test_names_that_cannot_be_shown(tmp_path: Path) -> None:
    try:
        (tmp_path / "a\n.png").write_bytes(b"")
    except OSError:
        pytest.skip("the file system has no such names")
    with pytest.raises(ArtifactError, match="cannot be shown"):
        read(tmp_path, Images((6, 8)))


def test_without_pillow(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError, match=r"pip install 'mithridate\[data\]'"):
        read(pets, Images((6, 8)), labels=True)


# --- proposals ------------------------------------------------------------------------------------------------------


def test_a_proposal_for_a_folder(pets: Path) -> None:
    found = propose(pets)
    assert found == Images((8, 8), 3, ("cat", "dog"), proposed=True)
    assert read(pets, found, labels=True).assumptions == found.assumptions != ()
    save(pets / "one" / "large.png", np.zeros((600, 300), np.uint8))
    assert propose(pets / "one") == Images((64, 32), 1, None, proposed=True)


def test_folders_that_are_numbers_are_proposed_in_their_order(tmp_path: Path) -> None:
    for name in ("10", "9", "2"):
        save(tmp_path / name / "a.png", picture(0))
    found = propose(tmp_path)
    assert found.classes == ("2", "9", "10")
    assert np.asarray(read(tmp_path, found, labels=True).y).tolist() == [2, 0, 1]


def test_new_images_do_not_name_classes(pets: Path) -> None:
    with pytest.raises(ConfigError, match=r"cat/a.PNG is 'cat', but the classes of the training data are numbers"):
        read(pets, Images((6, 8)))


# --- Hugging Face ---------------------------------------------------------------------------------------------------


def test_a_hugging_face_data_set_of_images(pets: Path) -> None:
    datasets = pytest.importorskip("datasets")
    files = [str(pets / name) for name in ("cat/a.PNG", "dog/1.png")]
    features = datasets.Features({"picture": datasets.Image(), "label": datasets.ClassLabel(names=["dog", "cat"])})
    source = datasets.Dataset.from_dict({"picture": files, "label": [1, 0]}, features=features)
    found = read(source, Images((6, 8)), labels=True)
    np.testing.assert_array_equal(found.x, read(pets, Images((6, 8)), labels=True).x[[0, 3]])
    assert found.ids == ("row 0", "row 1")
    assert np.asarray(found.y).tolist() == [1, 0]
    assert found.class_names == ("dog", "cat")
    assert "description of the data set" in found.assumptions[0]
    named = read(source, Images((6, 8)), classes=("cat", "dog"))
    assert np.asarray(named.y).tolist() == [0, 1]
    assert named.assumptions == ()
    assert propose(source) == Images((8, 8), 3, ("dog", "cat"), proposed=True)
    with pytest.raises(ConfigError, match="declare their size"):
        read(source)
    with pytest.raises(ConfigError, match=r"column 'picture' holds \w+ values"):
        read(source, Table("label", (Text("picture"),)), labels=True)
    (pets / "dog" / "1.png").write_bytes(b"broken")
    with pytest.raises(MithridateError, match="Image 1"):
        read(source, Images((6, 8)), labels=False)
    with pytest.raises(MithridateError, match="Image 0"):
        propose(source.select([1]))
    without = datasets.Dataset.from_dict({"picture": [None], "label": [0]}, features=features)
    with pytest.raises(ConfigError, match="got NoneType as number 0"):
        read(without, Images((6, 8)), labels=False)


def test_classes_of_the_description_of_new_data_do_not_count(pets: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"picture": datasets.Image(), "label": datasets.ClassLabel(names=["dog", "cat"])})
    source = datasets.Dataset.from_dict({"picture": [str(pets / "cat/a.PNG")], "label": [1]}, features=features)
    with pytest.raises(
        ConfigError, match=r"row 0 \(from 0\) is 'cat', but the classes of the training data are numbers"
    ):
        read(source, Images((6, 8)))
    assert read(source, Images((6, 8)), labels=False).class_names is None
    assert np.asarray(read(source, Images((6, 8)), classes=("cat", "dog")).y).tolist() == [0]


def test_large_pictures_of_data_sets(pets: Path) -> None:
    """Whatever Pillow says, and also where it says nothing: the limit is below its own."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"picture": datasets.Image()})
    (pets / "huge.png").write_bytes(png_that_claims(60_000, 60_000))
    source = datasets.Dataset.from_dict({"picture": [str(pets / "huge.png")]}, features=features)
    for attempt in (lambda: read(source, Images((6, 8))), lambda: propose(source)):
        with pytest.raises(
            ConfigError, match=r"Image 0 \(from 0\) of the data set claims .* shrink it, or leave it out"
        ):
            attempt()


class Large:
    """A picture of a size that takes no memory."""

    mode, size, width, height = "L", (9000, 9000), 9000, 9000

    def convert(self, mode: str) -> Any:
        raise AssertionError("It is too large to be decoded.")


def test_large_pictures_in_memory() -> None:
    small = Image.fromarray(picture(0))
    with pytest.raises(ArtifactError, match=r"Image 1 \(from 0\) of the data set claims more than 67,108,864 pixels"):
        read([small, Large()], Images((6, 8)))
    with pytest.raises(ArtifactError, match=r"Image 1 \(from 0\) of them claims .*; shrink it"):
        from_pictures(iter([small, Large()]), 2, Images((6, 8)), "them")


# --- fuzzing --------------------------------------------------------------------------------------------------------

valid = [encoded(kind) for kind in ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(0, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


@settings(max_examples=300)
@given(st.binary(max_size=100) | damaged(), st.sampled_from(SUFFIXES))
def test_any_bytes_are_an_image_or_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"fuzz{suffix}"
    path.write_bytes(data)
    try:
        found = read(path, Images((4, 4)))
    except ArtifactError:
        return
    assert found.x.shape == (1, 3, 4, 4)


def test_data_of_another_kind_than_declared(pets: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    table = tmp_path_factory.mktemp("other") / "a.csv"
    table.write_text("age\n1\n")
    with pytest.raises(ConfigError, match=r"a\.csv is a table, but images are declared; give images"):
        read(table, Images((6, 8), classes=("cat", "dog")))
    for source in (pets, pets / "cat" / "a.PNG"):
        with pytest.raises(ConfigError, match="holds images, but a table is declared; give a table"):
            read(source, Table("kind", (Number("age", 0, 120),), ("cat", "dog")))

"""Well-known data sets: found, downloaded, checked; files of any other kind are refused in a sentence."""

import gzip
import hashlib
import http.server
import io
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mithridate.data import named, published_files
from mithridate.data.examples import Examples
from mithridate.data.named import NAMES, Part, Published, load_named
from mithridate.data.published_files import PublishedFile
from mithridate.errors import ArtifactError, ConfigError

RANDOM = np.random.default_rng(5)
TRAIN, TEST = 10, 4
# Two small sets with the file names, shapes and layouts of the real ones.
GREY = [(RANDOM.integers(0, 256, (n, 28, 28), np.uint8), RANDOM.integers(0, 10, n, np.uint8)) for n in (TRAIN, TEST)]
COLOUR = [
    (RANDOM.integers(0, 256, (n, 3, 32, 32), np.uint8), RANDOM.integers(0, 10, n, np.uint8)) for n in (TRAIN, TEST)
]


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(length.to_bytes(4, "big") for length in array.shape)
    return header + array.tobytes()


def records(images: np.ndarray, labels: np.ndarray) -> bytes:
    return np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1).tobytes()


def idx_files() -> dict[str, bytes]:
    (x_train, y_train), (x_test, y_test) = GREY
    return {
        "train-images-idx3-ubyte": idx(x_train),
        "train-labels-idx1-ubyte": idx(y_train),
        "t10k-images-idx3-ubyte": idx(x_test),
        "t10k-labels-idx1-ubyte": idx(y_test),
    }


def compressed(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in files.items()}


def batch_files() -> dict[str, bytes]:
    (images, labels), test = COLOUR
    pieces = np.array_split(np.arange(TRAIN), 5)
    train = {f"data_batch_{k}.bin": records(images[piece], labels[piece]) for k, piece in enumerate(pieces, start=1)}
    return {**train, "test_batch.bin": records(*test)}


def archive(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as made:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tiny(real: Published, data: list[tuple[np.ndarray, np.ndarray]], files: dict[str, bytes]) -> Published:
    """A published data set like the real one, but with this content."""
    train, test = (Part(len(x), sha256(x.tobytes()), sha256(y.tobytes())) for x, y in data)
    offered = tuple(PublishedFile(name, len(content), sha256(content)) for name, content in files.items())
    return replace(real, train=train, test=test, files=offered, hosts=("http://127.0.0.1:9/",))


MNIST_FILES = compressed(idx_files())
CIFAR_FILES = {"cifar-10-binary.tar.gz": archive(batch_files())}


REAL = dict(named.PUBLISHED)


@pytest.fixture(autouse=True)
def _tiny_sets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MITHRIDATE_DATA", raising=False)
    monkeypatch.setenv("MITHRIDATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(named.PUBLISHED, "mnist", tiny(REAL["mnist"], GREY, MNIST_FILES))
    monkeypatch.setitem(named.PUBLISHED, "cifar10", tiny(REAL["cifar10"], COLOUR, CIFAR_FILES))


class Host:
    """A host on this machine that counts what it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        self.stall, self.break_off, self.may_end = threading.Event(), threading.Event(), threading.Event()
        host = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                host.asked.append(self.path)
                if host.stall.is_set():
                    host.may_end.wait()
                elif host.break_off.is_set():
                    self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: 100000\r\n\r\n1234")
                else:
                    super().do_GET()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}/"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def stop(self) -> None:
        self.may_end.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Host]]:
    """A folder that is offered on the network as the host of both sets."""
    folder = tmp_path / "offered"
    folder.mkdir()
    host = Host(folder)
    for name in ("mnist", "cifar10"):
        monkeypatch.setitem(named.PUBLISHED, name, replace(named.PUBLISHED[name], hosts=(host.address,)))
    yield folder, host
    host.stop()


def assert_same(found: tuple[Examples, Examples], data: list[tuple[np.ndarray, np.ndarray]]) -> None:
    for part, (images, labels) in zip(found, data, strict=True):
        x, y = part.x, part.y
        assert x.dtype == np.uint8
        assert y is not None
        assert y.dtype == np.int64
        assert np.array_equal(x, images if images.ndim == 4 else images[:, None])
        assert np.array_equal(y, labels)
        assert len(part.class_names or ()) == 10
        assert part.source["class_names"] == part.source["declaration"]["classes"]


# --- digits ---------------------------------------------------------------------------------------------------------


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    images, labels = (np.asarray(array) for array in load_digits(return_X_y=True))
    train, test = load_named("digits")
    assert train.x.shape == (1397, 1, 8, 8)
    assert test.x.shape == (400, 1, 8, 8)
    assert train.y is not None
    assert test.y is not None
    x, y = np.concatenate([train.x, test.x]), np.concatenate([train.y, test.y])
    assert y.dtype == np.int64
    assert np.array_equal(y, labels)
    assert x.dtype == np.uint8
    # The scaling can be undone, so nothing was lost, and it takes the ends to the ends.
    assert np.array_equal(np.rint(x[:, 0] * (16 / 255)), images.reshape(-1, 8, 8))
    assert (x.min(), x.max()) == (0, 255)


def test_without_scikit_learn_digits_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ConfigError, match=r"pip install 'mithridate\[train\]'"):
        load_named("digits")


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="digits, mnist, fashion-mnist, cifar10"):
        load_named("imagenet")


# --- found in a folder ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("files", [idx_files(), compressed(idx_files())], ids=["plain", "gz"])
def test_idx_files_are_found(tmp_path: Path, place: str, files: dict[str, bytes]) -> None:
    write(tmp_path / "data" / place, files)
    assert_same(load_named("mnist", data_dir=tmp_path / "data", download=False), GREY)


@pytest.mark.parametrize("place", ["", "cifar10", "cifar-10-batches-bin"])
@pytest.mark.parametrize("files", [batch_files(), CIFAR_FILES], ids=["batches", "archive"])
def test_cifar_is_found(tmp_path: Path, place: str, files: dict[str, bytes]) -> None:
    write(tmp_path / "data" / place, files)
    assert_same(load_named("cifar10", data_dir=tmp_path / "data", download=False), COLOUR)


@pytest.mark.parametrize("channels_last", [False, True])
def test_npz_files_are_found(tmp_path: Path, channels_last: bool) -> None:
    for name, data in (("mnist", GREY), ("cifar10", COLOUR)):
        (x_train, y_train), (x_test, y_test) = data
        if channels_last:
            x_train, x_test = (np.moveaxis(x.reshape(len(x), -1, *x.shape[-2:]), 1, -1) for x in (x_train, x_test))
            y_train = y_train[:, None].astype(np.int64)
        np.savez(tmp_path / f"{name}.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
        assert_same(load_named(name, data_dir=tmp_path, download=False), data)


def test_the_environment_names_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MITHRIDATE_DATA", str(write(tmp_path / "data", MNIST_FILES)))
    assert_same(load_named("mnist", download=False), GREY)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArtifactError, match="nowhere, which --data-dir names"):
        load_named("mnist", data_dir=tmp_path / "nowhere")
    monkeypatch.setenv("MITHRIDATE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ArtifactError, match="nowhere, which MITHRIDATE_DATA names"):
        load_named("mnist")


def test_pickles_are_not_read(tmp_path: Path) -> None:
    """The Python version of CIFAR-10 counts as absent."""
    write(tmp_path / "cifar-10-batches-py", {name.removesuffix(".bin"): b"\x80\x04." for name in batch_files()})
    with pytest.raises(ArtifactError, match=r"Put the files cifar-10-binary\.tar\.gz \(not the Python version"):
        load_named("cifar10", data_dir=tmp_path, download=False)


# --- what is not as published ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(idx_files()))
def test_one_other_byte_is_noticed(tmp_path: Path, name: str) -> None:
    files = idx_files()
    files[name] = files[name][:-1] + bytes([(files[name][-1] + 1) % 10])
    write(tmp_path, files)
    with pytest.raises(ArtifactError, match="are not mnist as it was published"):
        load_named("mnist", data_dir=tmp_path)


def test_files_of_the_user_are_never_deleted(tmp_path: Path) -> None:
    data = write(tmp_path / "data", {name: b"damaged" for name in MNIST_FILES})
    with pytest.raises(ArtifactError):
        load_named("mnist", data_dir=data)
    assert {path.name for path in data.iterdir()} == set(MNIST_FILES)


DAMAGE = {
    "empty": b"",
    "not gzip": b"hello",
    "truncated": MNIST_FILES["train-images-idx3-ubyte.gz"][:-30],
    "bad checksum": MNIST_FILES["train-images-idx3-ubyte.gz"][:-8] + b"\0" * 8,
    "bad deflate": MNIST_FILES["train-images-idx3-ubyte.gz"][:12] + b"\xff" * 40,
    "bad header": gzip.compress(b"\1" + idx_files()["train-images-idx3-ubyte"][1:]),
    "header only": gzip.compress(idx_files()["train-images-idx3-ubyte"][:10]),
    "huge axes": gzip.compress(bytes([0, 0, 8, 4]) + b"\xff" * 16),
    "a bomb": gzip.compress(b"\0" * 10_000_000),
}


@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_a_damaged_idx_file_is_named(tmp_path: Path, damage: str) -> None:
    write(tmp_path, {**MNIST_FILES, "train-images-idx3-ubyte.gz": DAMAGE[damage]})
    with pytest.raises(ArtifactError, match=r"train-images-idx3-ubyte\.gz .*copy or download it again"):
        load_named("mnist", data_dir=tmp_path)


WHOLE = CIFAR_FILES["cifar-10-binary.tar.gz"]
CIFAR_DAMAGE = {
    "empty": b"",
    "not gzip": b"hello",
    "truncated": WHOLE[: len(WHOLE) // 2],
    "not a tar": gzip.compress(b"x" * 10_000),
    "one batch missing": archive({name: c for name, c in batch_files().items() if name != "data_batch_3.bin"}),
    "a broken record": archive({**batch_files(), "test_batch.bin": batch_files()["test_batch.bin"][:-1]}),
    "an unknown label": archive({**batch_files(), "test_batch.bin": b"\x0a" + batch_files()["test_batch.bin"][1:]}),
    "a huge batch": archive({**batch_files(), "test_batch.bin": bytes(3073 * (TRAIN + 1))}),
}


@pytest.mark.parametrize("damage", sorted(CIFAR_DAMAGE))
def test_a_damaged_archive_is_named(tmp_path: Path, damage: str) -> None:
    write(tmp_path, {"cifar-10-binary.tar.gz": CIFAR_DAMAGE[damage]})
    with pytest.raises(ArtifactError, match=r"cifar-10-binary\.tar\.gz.*again"):
        load_named("cifar10", data_dir=tmp_path)


def test_an_archive_cannot_lead_out_of_itself(tmp_path: Path) -> None:
    """A link under the name of a batch is no batch."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as made:
        for name in batch_files():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            made.addfile(link)
    write(tmp_path, {"cifar-10-binary.tar.gz": stream.getvalue()})
    with pytest.raises(ArtifactError, match=r"lacks data_batch_1\.bin"):
        load_named("cifar10", data_dir=tmp_path)


@pytest.mark.parametrize("names", [("x",), ("x_train", "y_train", "x_test", "y_test")])
def test_another_npz_is_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    np.savez(tmp_path / "mnist.npz", **dict.fromkeys(names, np.zeros(0)))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArtifactError, match=r"lacks the arrays x_train|are not mnist as it was published"):
        load_named("mnist", data_dir=tmp_path)


# --- downloaded -----------------------------------------------------------------------------------------------------


def test_it_is_downloaded_once(tmp_path: Path, offered: tuple[Path, Host]) -> None:
    folder, host = offered
    write(folder, {**MNIST_FILES, **CIFAR_FILES})
    steps: list[tuple[int, int]] = []
    assert_same(load_named("mnist", progress=lambda done, total: steps.append((done, total))), GREY)
    total = sum(len(content) for content in MNIST_FILES.values())
    assert steps[-1] == (total, total)
    assert steps == sorted(steps)
    assert sorted(host.asked) == sorted(f"/{name}" for name in MNIST_FILES)
    assert_same(load_named("mnist"), GREY)
    assert_same(load_named("mnist", download=False), GREY)
    assert len(host.asked) == len(MNIST_FILES)
    cached = tmp_path / "cache" / "data" / "mnist"
    assert {path.name for path in cached.iterdir()} == set(MNIST_FILES)
    assert_same(load_named("cifar10"), COLOUR)


def test_only_what_is_missing_is_downloaded(tmp_path: Path, offered: tuple[Path, Host]) -> None:
    folder, host = offered
    write(folder, MNIST_FILES)
    there, missing = sorted(MNIST_FILES)[:3], sorted(MNIST_FILES)[3]
    write(tmp_path / "cache" / "data" / "mnist", {name: MNIST_FILES[name] for name in there})
    assert_same(load_named("mnist"), GREY)
    assert host.asked == [f"/{missing}"]


@pytest.mark.parametrize("arrived", [b"", b"short", b"\0" * len(WHOLE), WHOLE + b"more"])
def test_what_is_not_as_published_never_gets_its_name(
    tmp_path: Path, offered: tuple[Path, Host], arrived: bytes
) -> None:
    write(offered[0], {"cifar-10-binary.tar.gz": arrived})
    with pytest.raises(ArtifactError, match=r"what arrived is not cifar-10-binary\.tar\.gz as it was published"):
        load_named("cifar10")
    assert list((tmp_path / "cache" / "data" / "cifar10").iterdir()) == []


def test_the_second_host_is_asked_when_the_first_fails(
    offered: tuple[Path, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, host = offered
    write(folder, MNIST_FILES)
    hosts = (f"{host.address}not-there/", "http://127.0.0.1:9/", host.address)
    monkeypatch.setitem(named.PUBLISHED, "mnist", replace(named.PUBLISHED["mnist"], hosts=hosts))
    assert_same(load_named("mnist"), GREY)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_offline_it_says_what_to_do_without_an_address(tmp_path: Path, name: str) -> None:
    """Nothing listens at the hosts of these tests."""
    with pytest.raises(ArtifactError) as caught:
        load_named(name)
    message = str(caught.value)
    assert message.startswith(f"{name} cannot be downloaded: there is no connection to the host. Put the files ")
    assert message.endswith("--data-dir or MITHRIDATE_DATA, or connect to the network.")
    assert "://" not in message
    assert "\n" not in message
    for file in named.PUBLISHED[name].files:
        assert file.name in message
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_missing_file_on_the_host_is_said(offered: tuple[Path, Host]) -> None:
    with pytest.raises(ArtifactError, match="the host answered with status 404"):
        load_named("mnist")


def test_a_host_that_stalls_is_given_up(offered: tuple[Path, Host], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_files, "_TIMEOUT_SECONDS", 0.1)
    offered[1].stall.set()
    with pytest.raises(ArtifactError, match="there is no connection to the host"):  # and this ends
        load_named("mnist")


def test_a_host_that_breaks_off_leaves_nothing(tmp_path: Path, offered: tuple[Path, Host]) -> None:
    offered[1].break_off.set()
    with pytest.raises(ArtifactError, match="cannot be downloaded"):
        load_named("mnist")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_downloading_can_be_switched_off(tmp_path: Path, offered: tuple[Path, Host]) -> None:
    with pytest.raises(ArtifactError, match=rf"mnist is not in {tmp_path}.*downloading is switched off"):
        load_named("mnist", data_dir=tmp_path, download=False)
    assert offered[1].asked == []


def test_without_a_cache_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch, offered: tuple[Path, Host]) -> None:
    monkeypatch.setenv("MITHRIDATE_CACHE", "off")
    with pytest.raises(ArtifactError, match="MITHRIDATE_CACHE is off"):
        load_named("mnist")
    assert offered[1].asked == []


def test_a_cache_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("MITHRIDATE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ArtifactError, match="Set MITHRIDATE_CACHE to another one"):
        load_named("mnist")


def test_damaged_files_in_the_cache_are_deleted_and_nothing_else(tmp_path: Path, offered: tuple[Path, Host]) -> None:
    write(offered[0], MNIST_FILES)
    cached = write(tmp_path / "cache" / "data" / "mnist", {**MNIST_FILES, "t10k-labels-idx1-ubyte.gz": b"damaged"})
    (cached / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="were damaged and have been deleted; run the same again"):
        load_named("mnist")
    assert [path.name for path in cached.iterdir()] == ["notes.txt"]
    assert_same(load_named("mnist"), GREY)


# --- any bytes at all -----------------------------------------------------------------------------------------------

headers = st.tuples(st.sampled_from([0, 0, 0, 1]), st.just(0), st.sampled_from([8, 8, 8, 9]), st.integers(0, 5)).map(
    bytes
)


def outcome(read: Callable[[], Any]) -> tuple[Any, str | None]:
    """What a reader gave, or the sentence with which it refused; any other exception fails the test."""
    try:
        return read(), None
    except ArtifactError as error:
        return None, str(error)


@given(st.one_of(st.binary(max_size=64), st.builds(bytes.__add__, headers, st.binary(max_size=64))))
def test_any_bytes_are_an_idx_array_or_an_error(content: bytes) -> None:
    array, refusal = outcome(lambda: published_files.parse_idx(content, "this"))
    assert refusal.startswith("this ") if refusal else idx(array) == content


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.data())
def test_an_idx_array_comes_back(shape: list[int], data: st.DataObject) -> None:
    size = int(np.prod(shape))
    array = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8).reshape(shape)
    assert np.array_equal(published_files.parse_idx(idx(array), "this"), array)


@given(st.integers(0, 3), st.integers(-2, 2), st.binary(min_size=1, max_size=16))
def test_any_bytes_are_cifar_records_or_an_error(count: int, extra: int, pattern: bytes) -> None:
    length = max(0, count * 3073 + extra)
    content = (pattern * (length // len(pattern) + 1))[:length]
    read, refusal = outcome(lambda: published_files.parse_cifar(content, "this"))
    right = bool(count) and not extra and max(content[::3073]) <= 9
    assert (refusal is None) == right
    assert refusal.startswith("this ") if refusal else records(*read) == content


@given(st.binary(max_size=200), st.sampled_from(["a.gz", "a"]))
def test_any_file_is_read_or_named(tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str) -> None:
    path = tmp_path_factory.mktemp("any") / name
    path.write_bytes(content)
    readers = (
        partial(published_files.read_idx, path, limit=1000),
        partial(published_files.read_cifar, path, limit=10_000),
        partial(published_files.read_cifar_archive, path, ["test_batch.bin"], limit=10_000),
    )
    for read in readers:
        refusal = outcome(read)[1]
        assert refusal is None or str(path) in refusal


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_an_archive_with_one_other_byte_is_read_or_named(
    tmp_path_factory: pytest.TempPathFactory, at: int, change: int
) -> None:
    path = tmp_path_factory.mktemp("any") / "cifar-10-binary.tar.gz"
    path.write_bytes(WHOLE[:at] + bytes([WHOLE[at] ^ change]) + WHOLE[at + 1 :])
    found, refusal = outcome(lambda: load_named("cifar10", data_dir=path.parent, download=False))
    if refusal is None:  # The byte did not matter, such as the time in the header of gzip.
        assert_same(found, COLOUR)
    else:
        assert str(path.parent) in refusal


# --- the real thing -------------------------------------------------------------------------------------------------


def test_real_sets_are_offered_over_https_and_pinned() -> None:
    assert set(REAL) | {"digits"} == set(NAMES)
    for published in REAL.values():
        assert all(host.startswith("https://") and host.endswith("/") for host in published.hosts)
        for pinned in [file.sha256 for file in published.files] + [published.train.images, published.test.labels]:
            assert len(bytes.fromhex(pinned)) == 32


# --- files that unpack to more than they should ---------------------------------------------------------------------


def test_an_archive_that_unpacks_to_more_than_was_published(tmp_path: Path) -> None:
    """Members that nobody asked for are not unpacked without end either."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as made:
        member = tarfile.TarInfo("zeros")
        member.size = 1 << 26
        made.addfile(member, io.BytesIO(bytes(member.size)))
    (tmp_path / "a.tar.gz").write_bytes(stream.getvalue())
    with pytest.raises(ArtifactError, match=r"not a readable \.tar\.gz"):
        published_files.read_cifar_archive(tmp_path / "a.tar.gz", ["test_batch.bin"], limit=1 << 20)

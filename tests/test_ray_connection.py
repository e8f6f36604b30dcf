"""Addresses of clusters that cannot be used, and connections that are lost: errors in words, and no other cluster.

No cluster is started here; `test_ray_faults` has drivers outside of one.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn
from training_doubles import TEST, TRAIN, make_config

from mithridate import ClusterError, ConfigError, Ray
from mithridate.data.examples import Dataset

ray = pytest.importorskip("ray", reason="needs: pip install 'mithridate[ray]'")
grpc = pytest.importorskip("grpc", reason="needs: pip install 'mithridate[ray]'")
from mithridate.training import ray_cluster, ray_connection, ray_tasks  # noqa: E402
from mithridate.training.task import Job, NetworkTrainer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")


@contextlib.contextmanager
def server_of(*services: Any) -> Iterator[int]:
    """A gRPC server on this machine; its port."""
    from concurrent.futures import ThreadPoolExecutor

    server = grpc.server(ThreadPoolExecutor(1), handlers=services)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


class ClientPort(grpc.GenericRpcHandler):
    """Answers a ping of Ray's own making, or refuses it with a code."""

    def __init__(self, code: Any = None) -> None:
        self._code = code
        self.pings: list[Any] = []

    def service(self, handler_call_details: Any) -> Any:
        from ray.core.generated.ray_client_pb2 import ClusterInfoRequest  # pyright: ignore[reportAttributeAccessIssue]

        def answer(request: Any, context: Any) -> bytes:
            self.pings.append(request.type)
            if self._code is not None:
                context.abort(self._code, "no")
            return b""

        if handler_call_details.method != "/ray.rpc.RayletDriver/ClusterInfo":
            return None
        return grpc.unary_unary_rpc_method_handler(answer, request_deserializer=ClusterInfoRequest.FromString)


@pytest.fixture
def without_token(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from ray._private.authentication_test_utils import reset_auth_token_state

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    reset_auth_token_state()
    yield
    monkeypatch.undo()
    reset_auth_token_state()


@pytest.fixture
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails here fails before Ray itself tries, which it would for half a minute."""
    monkeypatch.setattr(ray, "init", pytest.fail)


# --- addresses ------------------------------------------------------------------------------------------------------


def refused(address: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words), ray_connection.connected(Ray(address=address)):
        pass


@pytest.mark.usefixtures("without_token", "in_a_hurry")
def test_a_port_that_asks_for_a_token() -> None:
    with server_of(ClientPort(grpc.StatusCode.UNAUTHENTICATED)) as port:
        refused(f"ray://127.0.0.1:{port}", "does not let us in.*RAY_AUTH_MODE=token.*RAY_AUTH_TOKEN")


@pytest.mark.usefixtures("without_token", "in_a_hurry")
def test_another_port_of_a_cluster() -> None:
    with server_of() as port:
        refused(f"ray://127.0.0.1:{port}", r"not the client port of a Ray cluster \(UNIMPLEMENTED\).*10001 of the head")


@pytest.mark.usefixtures("without_token", "in_a_hurry")
def test_a_port_of_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as guest:
                        guest.sendall(b"220 mail.example ESMTP\r\n")

        threading.Thread(target=greet, daemon=True).start()
        refused(f"ray://127.0.0.1:{server.getsockname()[1]}", "not the client port of a Ray cluster")


def test_without_grpc_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        refused(f"ray://127.0.0.1:{server.getsockname()[1]}", r"needs gRPC.*pip install 'mithridate\[ray\]'")


def opened(monkeypatch: pytest.MonkeyPatch, *outcomes: Exception | None) -> list[dict[str, Any]]:
    """What Ray is asked to connect to, where connecting ends like this; nothing is connected."""
    calls: list[dict[str, Any]] = []

    def init(**options: Any) -> None:
        calls.append(options)
        outcome = outcomes[len(calls) - 1]
        if outcome is not None:
            raise outcome

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    return calls


@pytest.mark.usefixtures("without_token")
def test_a_client_port_is_pinged_once_and_used(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, service = opened(monkeypatch, None), ClientPort()
    with server_of(service) as port:
        monkeypatch.setattr(ray_connection, "_CLIENT_PORT", port)
        with ray_connection.connected(Ray(address="ray://127.0.0.1")):  # the port may be left out
            pass
    assert service.pings == [6]
    assert [call["address"] for call in calls] == [f"ray://127.0.0.1:{port}"]


@pytest.mark.usefixtures("without_token")
def test_other_versions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Ray's own words, which are several lines."""
    from ray._private.utils import check_version_info

    with pytest.raises(RuntimeError) as caught:
        check_version_info({"ray_version": "2.1.0", "python_version": "3.9.1"}, "Ray Client")
    opened(monkeypatch, caught.value)
    words = rf"with: Ray: 2\.1\.0 Python: 3\.9\.1 .*with: Ray: {ray.__version__} .*same versions on both sides"
    with server_of(ClientPort()) as port:
        refused(f"ray://127.0.0.1:{port}", words)


@pytest.mark.usefixtures("without_token")
def test_a_head_node_that_fails_to_serve_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = ConnectionAbortedError("Initialization failure from server:\nTraceback (most recent call last):\nno luck")
    calls = opened(monkeypatch, trouble, trouble, None)
    with server_of(ClientPort()) as port:
        with ray_connection.connected(Ray(address=f"ray://127.0.0.1:{port}")):
            pass
        assert len(calls) == 3
        opened(monkeypatch, trouble, trouble, trouble)
        refused(f"ray://127.0.0.1:{port}", r": no luck\. ")


# --- a cluster of our own --------------------------------------------------------------------------------------------


def modes(folder: Path) -> dict[str, int]:
    """What other users may do with a folder and all that is in it."""
    return {path.name: stat.S_IMODE(path.lstat().st_mode) for path in (folder, *folder.rglob("*"))}


@pytest.fixture
def open_to_all() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.skipif(os.name != "posix", reason="needs the rights of POSIX")
@pytest.mark.usefixtures("open_to_all")
def test_the_token_is_private_at_every_moment(tmp_path: Path) -> None:
    """Whatever the umask; looked at whenever a file is opened, linked, renamed or removed there."""
    seen: list[dict[str, int]] = []
    is_watched = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if is_watched and event in ("open", "os.link", "os.rename", "os.remove", "os.chmod"):
            if (tmp_path / ".ray").exists():
                seen.append(modes(tmp_path / ".ray"))

    sys.addaudithook(watch)  # for good, so it is told when to rest
    try:
        ray_connection.make_token_private(tmp_path / ".ray" / "auth_token")
    finally:
        is_watched = False
    assert len(seen) >= 3
    assert all(mode & 0o077 == 0 for each in seen for mode in each.values()), seen
    assert modes(tmp_path / ".ray") == {".ray": 0o700, "auth_token": 0o600}
    assert re.fullmatch("[0-9a-f]{64}", (tmp_path / ".ray" / "auth_token").read_text())


@pytest.mark.skipif(os.name != "posix", reason="needs the rights of POSIX")
@pytest.mark.usefixtures("open_to_all")
def test_an_old_token_stays_and_becomes_private(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / ".ray" / "auth_token"
    path.parent.mkdir()
    path.write_text("known")
    ray_connection.make_token_private(path)
    assert modes(path.parent) == {".ray": 0o700, "auth_token": 0o600}
    assert path.read_text() == "known"
    assert "could read Ray's token" in caplog.text
    caplog.clear()
    ray_connection.make_token_private(path)
    assert caplog.text == ""


def test_without_hard_links_there_is_a_token_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    ray_connection.make_token_private(tmp_path / ".ray" / "auth_token")
    assert [path.name for path in (tmp_path / ".ray").iterdir()] == ["auth_token"]


def test_of_two_that_make_a_token_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, path = os.link, tmp_path / ".ray" / "auth_token"

    def late(*arguments: Any) -> None:
        path.write_text("of the other one")
        link(*arguments)

    monkeypatch.setattr(os, "link", late)
    ray_connection.make_token_private(path)
    assert path.read_text() == "of the other one"
    assert [path.name for path in (tmp_path / ".ray").iterdir()] == ["auth_token"]


@pytest.mark.skipif(os.name != "posix", reason="needs the rights of POSIX")
def test_a_token_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / ".ray" / "auth_token"
    ray_connection.make_token_private(path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match=r"belongs to another user; remove it, or set RAY_AUTH_TOKEN_PATH"):
        ray_connection.make_token_private(path)


def test_a_ray_that_listens_elsewhere_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of another version might, whatever it is told."""
    monkeypatch.setattr(ray, "init", lambda **options: None)
    ended: list[None] = []
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(None))
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.7")
    monkeypatch.setenv("HOME", str(tmp_path))
    with (
        pytest.raises(ConfigError, match=r"would listen on 192\.0\.2\.7, where others may reach it"),
        ray_connection.connected(Ray()),
    ):
        pytest.fail("it is used")
    assert ended == [None]


def test_whoever_handles_the_end_goes_on_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ray takes SIGTERM for itself, and makes it `sys.exit`."""
    handled: list[int] = []

    def handler(number: int, frame: Any) -> None:
        handled.append(number)

    def init(**options: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        if is_terminated:
            os.kill(os.getpid(), signal.SIGTERM)

    is_terminated = False
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setenv("HOME", str(tmp_path))
    before = signal.signal(signal.SIGTERM, handler)
    try:
        with ray_connection.connected(Ray()):
            assert signal.getsignal(signal.SIGTERM) is handler
        is_terminated = True
        with pytest.raises(SystemExit), ray_connection.connected(Ray()):
            pytest.fail("it went on")
        assert handled == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


# --- connections that are lost --------------------------------------------------------------------------------------


def test_without_a_connection_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would start a cluster on this machine and ask that."""
    asked = opened(monkeypatch)
    with pytest.raises(ClusterError, match=r"connection to the Ray cluster was lost.*goes on from there"):
        ray_tasks.done([])
    assert asked == []


@pytest.mark.parametrize(
    "error", [ConnectionError("gone"), type("RpcError", (Exception,), {"__module__": "grpc"})("gone")]
)
def test_errors_of_the_network_are_said_in_words(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with pytest.raises(ClusterError, match=r"lost \(gone\)"), ray_connection.asking():
        raise error


def test_whatever_is_raised_when_there_is_no_connection_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    there = iter([True, False])
    monkeypatch.setattr(ray, "is_initialized", lambda: next(there))
    with pytest.raises(ClusterError, match=r"lost \(Ray Client is not connected\)"), ray_connection.asking():
        raise Exception("Ray Client is not connected.")


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    broken = ray.exceptions.RayTaskError("train_group", "", ConnectionError("of a worker")).as_instanceof_cause()
    assert isinstance(broken, ConnectionError)
    for error in (ray.exceptions.WorkerCrashedError(), broken, ZeroDivisionError(), ConfigError("no")):
        with pytest.raises(type(error)), ray_connection.asking():
            raise error


# --- what the head node cannot take ---------------------------------------------------------------------------------


def placed(monkeypatch: pytest.MonkeyPatch, error: Exception, inputs: Any = TRAIN[0]) -> None:
    def put(value: Any) -> None:
        raise error

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "put", put)
    data = Dataset(inputs, TRAIN[1])
    ray_cluster._placed(
        Job(NetworkTrainer(nn.Identity(), "Identity"), make_config(), data, TEST[0], (), None, keep_models=False)
    )


def test_a_model_that_the_head_node_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the model.*'mine'.*on every node"):
        placed(monkeypatch, ModuleNotFoundError("No module named 'mine'"))


def test_data_that_are_too_many_for_the_client_port(monkeypatch: pytest.MonkeyPatch) -> None:
    from google.protobuf.message import EncodeError

    many: Any = SimpleNamespace(nbytes=3 * 2**30)
    with pytest.raises(ConfigError, match=r"inputs of 3\.0 GiB are more than .* 2 GiB.*--address auto"):
        placed(monkeypatch, EncodeError("Failed to serialize proto"), many)
    with pytest.raises(ClusterError, match="lost"):
        placed(monkeypatch, ConnectionError("gone"), many)
    with pytest.raises(ClusterError, match="cannot keep the training data: full"):
        placed(monkeypatch, ray.exceptions.ObjectStoreFullError("full"), many)
    with pytest.raises(ValueError, match="something else"):
        placed(monkeypatch, ValueError("something else"), many)

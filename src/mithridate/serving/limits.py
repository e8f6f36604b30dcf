"""What a server takes from strangers, at most, and the token that tells others apart."""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from mithridate import _validate
from mithridate._io.files import read_file
from mithridate.errors import ConfigError

_SHORTEST_TOKEN, _LONGEST_TOKEN_FILE = 16, 1 << 12


@dataclass(frozen=True)
class RequestLimits:
    """What one request may ask for, and how many may wait.

    Attributes:
        max_body: bytes of a request.
        max_batch: inputs of a request.
        waiting: requests that a worker holds at a time; one of them is predicted, the others wait.
        body_seconds: how long a request may take to arrive.
    """

    max_body: int = 1 << 24
    max_batch: int = 256
    waiting: int = 32
    body_seconds: float = 30.0

    def __post_init__(self) -> None:
        _validate.positive_integer(max_body=self.max_body, max_batch=self.max_batch, waiting=self.waiting)


def read_token(path: Path) -> str:
    """The token in a file: its only line.

    Raises:
        ArtifactError: the file cannot be read.
        ConfigError: it holds no token, or one that could be guessed.
    """
    try:
        token = read_file(path, _LONGEST_TOKEN_FILE).decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if len(token) < _SHORTEST_TOKEN or not token.isprintable() or " " in token:
        raise ConfigError(
            f"Expected one line of {_SHORTEST_TOKEN} or more letters and digits in {path}, without spaces; make a "
            "token with: openssl rand -hex 32"
        )
    return token


def is_welcome(header: str | None, token: str | None) -> bool:
    """Whether a request with this `Authorization` is answered; how long that takes does not depend on what is wrong."""
    if token is None:
        return True
    kind, _, said = (header or "").partition(" ")
    same = hmac.compare_digest(said.strip().encode("utf-8", "replace"), token.encode())
    return same and kind.lower() == "bearer"


def check_host(host: str, *, has_token: bool) -> None:
    """Refuse to answer other machines without a token.

    Raises:
        ConfigError: the host is not this machine's own, and there is no token.
    """
    if not has_token and not _is_loopback(host):
        raise ConfigError(
            f"host {host!r} lets other machines ask, and there is no token; give token_file, or serve 127.0.0.1 only, "
            "behind something that asks who is there."
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

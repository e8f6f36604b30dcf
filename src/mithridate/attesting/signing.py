"""Ed25519 signatures by `cryptography`, which nobody needs who neither signs nor checks a signature."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mithridate._io.files import read_file
from mithridate.errors import ArtifactError, ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_MAKE = "make one with: openssl genpkey -algorithm ed25519 -out key.pem"
_PUBLIC = "take it from the private key with: openssl pkey -in key.pem -pubout -out public-key.pem"


@dataclass(frozen=True)
class Signature:
    """A signature of some bytes, and the public key of who signed them, as PEM."""

    signature: bytes
    public_key: bytes


def needs_cryptography(what: str) -> None:
    """Refuse what cannot be done without `cryptography`.

    Raises:
        ConfigError: it is not installed; the message names the extra that brings it.
    """
    try:
        import cryptography  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(f"{what} needs cryptography; install it with: pip install 'mithridate[evidence]'") from error


def read_private_key(path: Path, password: Callable[[], str]) -> Ed25519PrivateKey:
    """The private key in a PEM file.

    Args:
        path: the file.
        password: asked for the password, where the key has one.

    Raises:
        ArtifactError: the file cannot be read.
        ConfigError: it holds no such key, the password is wrong, or `cryptography` is not installed.
    """
    needs_cryptography("A signature")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content = read_file(path)
    try:
        key: Any = load_pem_private_key(content, None)
    except TypeError:  # it has a password
        key = _opened(content, password(), path)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} holds no Ed25519 private key in PEM; {_MAKE}") from error
    if not isinstance(key, Ed25519PrivateKey):
        kind = type(key).__name__.strip("_").removesuffix("PrivateKey")
        raise ConfigError(f"The key in {path} is of another kind ({kind}), and signatures are Ed25519; {_MAKE}")
    return key


def _opened(content: bytes, password: str, path: Path) -> Any:
    """A private key that has a password."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(content, password.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        problem = f"The password does not open the key in {path}; give the one it was made with."
        raise ConfigError(problem) from error


def read_public_key(path: Path) -> bytes:
    """The public key in a PEM file, as PEM in one form only.

    Raises:
        ArtifactError: the file cannot be read.
        ConfigError: it holds no such key, or `cryptography` is not installed.
    """
    needs_cryptography("A signature")
    content = read_file(path)
    key = _public_key(content)
    if key is None:
        raise ConfigError(f"{path} holds no Ed25519 public key in PEM; {_PUBLIC}")
    return _as_pem(key)


def signed(content: bytes, key: Ed25519PrivateKey) -> Signature:
    """The signature of these bytes by this key."""
    return Signature(key.sign(content), _as_pem(key.public_key()))


def is_by_its_key(content: bytes, signature: Signature) -> bool:
    """Whether these very bytes were signed by whoever holds the private key of the public key that is stated.

    Raises:
        ArtifactError: the stated public key is none.
        ConfigError: `cryptography` is not installed.
    """
    needs_cryptography("To check a signature")
    from cryptography.exceptions import InvalidSignature

    key = _public_key(signature.public_key)
    if key is None or _as_pem(key) != signature.public_key:
        raise ArtifactError("its public key is not an Ed25519 key as it was written")
    try:
        key.verify(signature.signature, content)
    except InvalidSignature:
        return False
    return True


def fingerprint_of(public_key: bytes) -> str:
    """SHA-256 of a public key in DER, as openssl and sha256sum find it, too (docs/evidence.md)."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = _public_key(public_key)
    assert key is not None  # which has been checked
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def _public_key(content: bytes) -> Ed25519PublicKey | None:
    """The key in a PEM file; None if there is none of this kind."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(content)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, Ed25519PublicKey) else None


def _as_pem(key: Ed25519PublicKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

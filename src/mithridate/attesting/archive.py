"""The bytes of an evidence archive: a zip of plain files, in one form only.

A zip has places that no reader looks at: times, comments, fields of either of two headers, gaps. So what is read is
packed again, and has to give the very same bytes. Members are stored, not compressed: what a compressor makes of them
depends on its version, and nothing can unpack to more than the archive holds.
"""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

from mithridate._io.artifacts import NO_ZIP
from mithridate._io.files import opened_file, read_file
from mithridate.errors import ArtifactError, ConfigError, MithridateError, TamperedError

MANIFEST, SIGNATURE, KEY = "manifest.json", "manifest.sig", "public-key.pem"
CERTIFICATE, VOTES = "certificate.json", "votes.npz"
REPORT, MAPPING = "report.html", "mapping.html"
CONFIGURATION, DATA, ENVIRONMENT = "configuration.json", "data.json", "environment.json"
# What every archive holds and its manifest lists, and what a signed one has besides; in the order of the archive.
LISTED = (CERTIFICATE, VOTES, REPORT, MAPPING, CONFIGURATION, DATA, ENVIRONMENT)
SIGNED = (SIGNATURE, KEY)
_ORDER = (MANIFEST, *SIGNED, *LISTED)
# Beyond this a zip would need another form.
_MOST_BYTES = 1 << 31
_TIME = (1980, 1, 1, 0, 0, 0)
_UNIX, _MODE = 3, 0o644
_START = b"PK\x03\x04"
# Where the name of the first member stands.
_NAME_AT = 30


def packed(files: Mapping[str, bytes]) -> bytes:
    """The archive of these files.

    Guarantee: its bytes are a function of the names and contents alone.

    Raises:
        ConfigError: the files are too large for it.
    """
    if sum(map(len, files.values())) > _MOST_BYTES:
        raise ConfigError(
            f"The certificate and its votes have more than {_MOST_BYTES:,} bytes, too many for one archive; certify "
            "fewer predictions."
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files, key=_ORDER.index):
            member = zipfile.ZipInfo(name, _TIME)
            member.create_system, member.external_attr = _UNIX, _MODE << 16
            archive.writestr(member, files[name])
    return buffer.getvalue()


def unpacked(path: Path) -> dict[str, bytes]:
    """What an archive holds.

    Guarantee: every byte of the archive follows from the names and contents that are given back. Names are those that
    an archive may have, each once, so that none leads to another folder. No more memory is taken than a few times the
    size of the archive.

    Raises:
        TamperedError: it is an archive, but its bytes are not those that were written.
        ArtifactError: it cannot be read, or is truncated.
    """
    content = read_file(path, _MOST_BYTES + (1 << 16))
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            _check_members(members, path)
            files = _contents(archive, members, path)
    except MithridateError:
        raise
    except NO_ZIP as error:
        raise ArtifactError(
            f"{path} is no readable archive (truncated or damaged: {str(error) or type(error).__name__}); copy it "
            "again."
        ) from error
    if packed(files) != content:
        raise TamperedError(
            f"{path} was changed after it was written: it holds bytes that belong to none of its files."
        )
    return files


def is_archive(path: Path) -> bool:
    """Whether a file is an evidence archive, by its content; a votes file is a zip, too."""
    with contextlib.suppress(ArtifactError, *NO_ZIP), opened_file(path) as stream:
        start = stream.read(_NAME_AT + len(MANIFEST))
        if not start.startswith(_START):
            return False
        if start[_NAME_AT:] == MANIFEST.encode():  # also where the rest is lost
            return True
        with zipfile.ZipFile(stream) as archive:
            return MANIFEST in archive.namelist()
    return False


def _check_members(members: list[zipfile.ZipInfo], path: Path) -> None:
    names = [member.filename for member in members]
    signed = any(name in names for name in SIGNED)
    expected = {name for name in _ORDER if signed or name not in SIGNED}
    if len(set(names)) < len(names):
        raise TamperedError(f"{path} was changed after it was written: it holds a file twice.")
    if missing := sorted(expected - set(names)):
        raise TamperedError(f"{path} was changed after it was written: {missing[0]} is missing.")
    if others := sorted(set(names) - expected):
        raise TamperedError(
            f"{path} was changed after it was written: it holds {others[0]!r:.80}, which no archive does."
        )
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise TamperedError(f"{path} is not as it was written: its files were compressed; take the original archive.")


def _contents(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo], path: Path) -> dict[str, bytes]:
    files = dict[str, bytes]()
    for member in members:
        try:
            files[member.filename] = archive.read(member)
        except NO_ZIP as error:
            raise TamperedError(
                f"{path} was changed after it was written: {member.filename} cannot be read "
                f"({str(error) or type(error).__name__})."
            ) from error
    return files

"""Ways to damage a file: blindly, byte by byte; and knowingly, so that every check but the last one passes."""

import base64
import gzip
import hashlib
import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

Mutation = Callable[[bytes, random.Random], bytes]

_TOKENS = [
    b"", b"0", b"-1", b"1", b"2", b"1e999", b"-1e999", b"1e-300", b"1e300", b"NaN", b"Infinity", b"9" * 30, b"1" * 5000,
    b"null", b"true", b"[]", b"{}", b"[[", b'"', b"'", b'"""', b"\n", b"\r", b",", b";", b"=", b"[x]", b"--", b"\0",
    b"\xff\xfe", b"\xef\xbb\xbf", "\u202e\u2028".encode(), b"\\ud800", b"PK\x03\x04", b"\x93NUMPY", b"(", b"L", b"|O",
]  # fmt: skip
_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 0.5, 1e-300, 1e300, -0.0, float("nan"), float("inf"), 10**18, 10**30, 2**53,
    2**63, "", "x", "0", "votes", "scores", "fdp", "adp", "cpu", "\ud800", "é\u202e", "x" * 300, [], {}, [1], [[0, 1]],
    {"a": 1}, {"name": "x"}, ["x"], [None], [[]],
]  # fmt: skip

_HEADERS = (
    "'|O'", "'<U9'", "'<U999999999'", "'V4'", "'<M8[ns]'", "[('a', '|O')]", "True", "(99999999999,", "(-1,", "3L", "((",
    "-" * 999, "[" * 300, "'<i3'", "'<U0'", "\0", "é", "", "{1: 2}", "1e9", "x",
)  # fmt: skip


def blindly(data: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, lost, doubled, moved, or replaced by something that means something."""
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(content) + 1)
        end = min(len(content), at + rng.choice((1, 2, 4, 8, 64)))
        way = rng.randrange(8)
        if way == 0 and at < len(content):
            content[at] ^= 1 << rng.randrange(8)
        elif way == 1:
            content[at:end] = rng.randbytes(end - at)
        elif way == 2:
            del content[at:end]
        elif way == 3:
            del content[at:]
        elif way == 4:
            content[at:at] = content[at:end] * rng.choice((1, 2, 50))
        elif way == 5:
            content[at:end] = rng.choice(_TOKENS)
        elif way == 6:
            content[at:at] = rng.choice(_TOKENS)
        else:
            content[at:end] = bytes([rng.choice((0, 255))]) * (end - at)
    return bytes(content)


def in_words(data: bytes, rng: random.Random) -> bytes:
    """Numbers, names and values of a text replaced by others."""
    words = data.replace(b",", b" , ").replace(b"=", b" = ").split(b" ") if rng.random() < 0.5 else data.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(words))
        words[at] = rng.choice((rng.choice(_TOKENS), rng.choice(words), words[at] + rng.choice(_TOKENS)))
    return (b" " if b" " in data and len(words) > data.count(b"\n") + 1 else b"\n").join(words)


# --- JSON -----------------------------------------------------------------------------------------------------------


def changed_value(value: Any, rng: random.Random) -> Any:
    """A JSON value with something in it changed."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        places = list(_places(value))
        if not places:
            return rng.choice(_VALUES)
        holder, key = rng.choice(places)
        way = rng.randrange(6)
        if way == 0:
            del holder[key]
        elif way == 1 and isinstance(holder, dict):
            holder[rng.choice(["", "x", "name", "é", *map(str, holder)])] = holder.pop(key)
        elif way == 2:
            other, its = rng.choice(places)
            holder[key] = json.loads(json.dumps(other[its]))
        elif way == 3 and isinstance(holder[key], int | float):
            holder[key] = holder[key] * rng.choice((-1, 0, 2, 0.5, 10**6, 1 + 1e-9))
        elif way == 4 and isinstance(holder[key], str):
            text = holder[key]
            at = rng.randrange(len(text) + 1)
            holder[key] = text[:at] + rng.choice(("", "x", "=", "\ud800", "9", "\n")) + text[at + rng.randrange(2) :]
        else:
            holder[key] = rng.choice(_VALUES)
    return value


def _places(value: Any) -> Any:
    """Every place in a value, as what holds it and the key or number there."""
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, dict | list):
            for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
                yield holder, key
                waiting.append(holder[key])


def in_json(data: bytes, rng: random.Random) -> bytes:
    """A JSON file with something in it changed."""
    return json.dumps(changed_value(json.loads(data), rng)).encode()


def rehashed(data: bytes, rng: random.Random) -> bytes:
    """A certificate with something in it changed, and the hash and size of a file that was never touched."""
    content = json.loads(data)
    for name in ("size", "sha256"):
        del content[name]
    schema = content.pop("schema")
    if rng.random() < 0.3:
        _repack(content, rng)
    else:
        content = changed_value(content, rng)
    body = json.dumps(content)[1:] + "\n"
    head = '{{"schema": "{}", "size": "{:012d}", "sha256": "{}",\n'
    size = len(head.format(schema, 0, "0" * 64).encode()) + len(body.encode())
    blank = head.format(schema, size, "0" * 64) + body
    digest = hashlib.sha256(blank.encode()).hexdigest()
    return (head.format(schema, size, digest) + body).encode()


def _repack(content: Any, rng: random.Random) -> None:
    """Another shape, type or content for one of the arrays, packed as it should be."""
    arrays = [
        value for _, value in ((h, h[k]) for h, k in _places(content)) if isinstance(value, dict) and "data" in value
    ]
    chosen = rng.choice(arrays)
    raw = zlib.decompress(base64.b64decode(chosen["data"]))
    chosen["data"] = base64.b64encode(zlib.compress(blindly(raw, rng))).decode()
    if rng.random() < 0.5:
        chosen["shape"] = [rng.choice((0, 1, 2, 3, 10**6, 10**12, -1)) for _ in range(rng.randrange(5))]
    if rng.random() < 0.3:
        chosen["dtype"] = rng.choice(("int64", "float64", "uint8", "uint16", "object", "U9"))


# --- zip, gzip ------------------------------------------------------------------------------------------------------


def in_members(data: bytes, rng: random.Random) -> bytes:
    """An `.npz` whose members were changed by someone who then wrote right checksums."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    way = rng.randrange(6)
    if way == 0:
        members[name] = blindly(members[name], rng)
    elif way == 1:
        members[name] = _other_header(members[name], rng)
    elif way == 2:
        members[rng.choice(("x", "more.npy", "counts.npy", "../x.npy", "é.npy", ".npy"))] = members.pop(name)
    elif way == 3:
        members[name] = _other_array(members[name], rng)
    elif way == 4:
        members[name] = members[rng.choice(list(members))]
    else:
        members[name] = _other_text(members[name], rng)
    return _zipped(members, rng)


def _zipped(members: dict[str, bytes], rng: random.Random) -> bytes:
    stream = io.BytesIO()
    method = rng.choice(
        (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2)
    )
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    written = stream.getvalue()
    return blindly(written, rng) if rng.random() < 0.2 else written


def _other_header(member: bytes, rng: random.Random) -> bytes:
    """Another type, shape or spelling in the header of an array, of a length that is right."""
    length = struct.unpack("<H", member[8:10])[0]
    text, body = member[10 : 10 + length].decode("latin-1"), member[10 + length :]
    old = rng.choice(("'<i8'", "'<f8'", "False", "(", ")", ",", "shape", "descr", "'", "{", "}", "1", "2"))
    new = rng.choice(_HEADERS)
    text = text.replace(old, new, rng.choice((1, -1)))
    header = text.encode("latin-1", "replace")
    return member[:8] + struct.pack("<H", len(header)) + header + body


def _other_array(member: bytes, rng: random.Random) -> bytes:
    array = np.load(io.BytesIO(member))
    made: list[Callable[[], Any]] = [
        lambda: array.astype(rng.choice((np.float16, np.float32, np.int8, np.uint64, np.complex64, bool)))
        if array.dtype.kind in "iuf" else array[..., None],
        lambda: array.T,
        lambda: array[None],
        lambda: array[:0] if array.ndim else array,
        lambda: np.full(array.shape, rng.choice((np.nan, np.inf, -1.0, 1e300, 2.0**53, 0.5))),
        lambda: np.array(["x", "\ud800"]),
        lambda: np.array(b"x"),
        lambda: np.array("{}"),
        lambda: np.zeros((0, 3)),
        lambda: np.asfortranarray(np.array(array)),
        lambda: array.astype(array.dtype.newbyteorder(">")),
        lambda: np.arange(array.size).reshape(array.shape),
        lambda: np.array(np.datetime64("2020-01-01")),
    ]  # fmt: skip
    stream = io.BytesIO()
    with np.errstate(all="ignore"):
        np.save(stream, np.asanyarray(rng.choice(made)()))
    return stream.getvalue()


def _other_text(member: bytes, rng: random.Random) -> bytes:
    """The JSON in an array of text, changed; other arrays stay what they are."""
    array = np.load(io.BytesIO(member))
    if array.dtype.kind != "U" or array.ndim:
        return blindly(member, rng)
    text = str(array)
    try:
        text = json.dumps(changed_value(json.loads(text), rng))
    except ValueError:
        text = blindly(text.encode(), rng).decode("utf-8", "replace")
    stream = io.BytesIO()
    np.save(stream, np.array(text or " "))
    return stream.getvalue()


def in_gzip(data: bytes, rng: random.Random) -> bytes:
    """What a gzip file holds, changed."""
    return gzip.compress(blindly(gzip.decompress(data), rng), compresslevel=1)


def in_safetensors(data: bytes, rng: random.Random) -> bytes:
    """The header of a file of models, changed, of a length that is right."""
    (length,) = struct.unpack("<Q", data[:8])
    header = in_json(data[8 : 8 + length], rng)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]

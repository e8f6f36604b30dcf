"""Ends whatever a cluster of the tests would leave behind, even where the tests themselves are killed.

As a program: waits until its input ends, which it does with the process that started it, whatever happens to that. Then
it ends all processes with a mark in their environment, and their children, and prints what there was to end.
"""

import contextlib
import ipaddress
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "MITHRIDATE_TEST_CLUSTER"
LISTENING = "0A"  # in the tables of /proc/net
# Seconds that processes have to end by themselves after an orderly shutdown.
GRACE = 300.0


def processes(mark: str) -> dict[int, str]:
    """Processes that were started with this mark, and their children, by what they are called."""
    parents, names, found = dict[int, int](), dict[int, str](), set[int]()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state == "Z":
                continue
            pid = int(folder.name)
            parents[pid] = int(parent)
            names[pid] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: names[pid] for pid in found if pid != os.getpid()}


def listening(mark: str) -> list[str]:
    """The addresses on which this process, and all of a mark, listen for connections, over IPv4 or IPv6."""
    sockets = set[str]()
    for pid in (*processes(mark), os.getpid()):
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(link))
    found: list[str] = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENING and f"socket:[{inode}]" in sockets:
                found.append(_address(bytes.fromhex(local.partition(":")[0])))
    return found


def _address(words: bytes) -> str:
    """As the kernel prints it: words of four bytes, each in the order of this machine."""
    parts = [words[at : at + 4] for at in range(0, len(words), 4)]
    ordered = b"".join(part[::-1] if sys.byteorder == "little" else part for part in parts)
    address = ipaddress.ip_address(ordered)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def end_all(mark: str, grace: float) -> list[str]:
    """End all processes of a mark that do not end by themselves; what they were called."""
    end = time.monotonic() + grace
    while (left := processes(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return sorted(left.values())


@contextlib.contextmanager
def watched(mark: str) -> Iterator[None]:
    """Require that everything with this mark has ended afterwards; it is ended in any case."""
    watcher = subprocess.Popen(
        [sys.executable, __file__, mark], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield
    except BaseException:
        watcher.communicate("")
        raise
    left, _ = watcher.communicate("done")
    assert left == "", f"a cluster of the tests left processes behind: {left}"


if __name__ == "__main__":
    is_orderly = sys.stdin.read() == "done"
    for name in end_all(sys.argv[1], GRACE if is_orderly else 0.0):
        print(name)

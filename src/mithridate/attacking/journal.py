"""What an audit has done, line by line, so that it resumes after an interruption of any kind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mithridate._io.files import TEXT_BYTES, read_file, write_atomically
from mithridate.errors import ArtifactError, ConfigError

NAME = "audit.jsonl"
SCHEMA = "mithridate.audit-journal/1"


class Journal:
    """Answers by their keys, in a file to which lines are only added; a line that a crash cut off is not read.

    Args:
        folder: where the file is; None: in memory.
        identity: what the audit is about; only the same audit is resumed.

    Raises:
        ConfigError: the folder belongs to another audit.
        ArtifactError: the file cannot be read or written.
    """

    def __init__(self, folder: Path | None, identity: dict[str, Any]) -> None:
        self._path = None if folder is None else folder / NAME
        self._known: dict[str, Any] = {}
        self.started: dict[str, Any] = {}
        self.seconds = 0.0
        if self._path is not None and self._path.exists():
            self._read(self._path, identity)
        if not self.started:
            self.started = {"schema": SCHEMA, "identity": identity, "seed": os.urandom(32).hex()}
            self._write(self.started, fresh=True)

    @property
    def seed(self) -> bytes:
        """Where the randomness of the search comes from."""
        return bytes.fromhex(self.started["seed"])

    def find(self, key: str) -> Any:
        """What is known of a key; None where nothing is."""
        return self._known.get(key)

    def add(self, key: str, answer: Any, seconds: float) -> None:
        """Keep an answer, and how long the audit has taken so far."""
        self._known[key], self.seconds = answer, seconds
        self._write({"key": key, "answer": answer, "seconds": round(seconds, 3)})

    def count(self, start: str) -> int:
        """How many keys start in this way."""
        return sum(key.startswith(start) for key in self._known)

    def _read(self, path: Path, identity: dict[str, Any]) -> None:
        lines = read_file(path, TEXT_BYTES).decode("utf-8", "replace").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        if len(whole) < len(lines):  # a line that was cut off is written again
            with write_atomically(path) as file:
                file.write("".join(whole).encode())
        try:
            said = [json.loads(line) for line in whole]
            if not said:
                return
            if said[0]["schema"] != SCHEMA or len(bytes.fromhex(said[0]["seed"])) != 32:
                raise ValueError("it is of another version")
            for each in said[1:]:
                self._known[str(each["key"])], self.seconds = each["answer"], float(each["seconds"])
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(
                f"{path} is damaged ({error!s:.100}). Remove it, or choose another folder (-o)."
            ) from error
        if said[0]["identity"] != json.loads(json.dumps(identity)):
            known = said[0]["identity"]
            other = next((name for name in identity if known.get(name) != identity[name]), "something")
            raise ConfigError(
                f"{path.parent} belongs to another audit ({other} was different); choose another folder (-o)."
            )
        self.started = said[0]

    def _write(self, line: dict[str, Any], *, fresh: bool = False) -> None:
        if self._path is None:
            return
        try:
            with open(self._path, "w" if fresh else "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ArtifactError(f"Cannot write {self._path}: {error.strerror}. Choose another folder (-o).") from error

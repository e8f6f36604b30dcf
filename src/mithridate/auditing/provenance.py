"""Whether the votes in a certificate are those of the run, or of the votes file, that it is said to come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mithridate._io.artifacts import PathLike
from mithridate._io.files import parse_json, read_file
from mithridate.core.conditions import from_plain, to_plain
from mithridate.core.mechanism import Deterministic
from mithridate.core.size import Size
from mithridate.core.votes import Votes
from mithridate.errors import ArtifactError


def differences_from_source(votes: Votes, run: PathLike) -> str:
    """In what votes are not those of their source, with all that was said about them there; empty where they are.

    Args:
        votes: what was certified.
        run: the directory of a run, or a votes file.

    Raises:
        ArtifactError: the source cannot be read.
    """
    folder = Path(run)
    source = Votes.load(folder / "votes.npz" if folder.is_dir() else folder)
    if (folder / "run.json").exists() and (damage := _differences_from_run(source, folder)):
        return f"votes.npz in {run} is not what that run counted: {' and '.join(damage)} differ"
    found = _differences(_facts(votes), _facts(source))
    return f"{' and '.join(found)} differ from those of {run}" if found else ""


def _facts(votes: Votes) -> dict[str, Any]:
    """What a certificate takes over from its votes, by the words of an audit; arrays only where they are there."""
    facts: dict[str, Any] = {
        "counts": votes.counts,
        "mechanism": votes.mechanism.to_dict(),
        "recipe": votes.recipe,
        "fingerprint": votes.data_fingerprint,
        "runs": votes.run_ids,
        "shards": (dict(votes.shards), dict(votes.planned)),
        "size": votes.size,
        "conditions": to_plain(votes.assumptions),
    }
    scores = {name: getattr(votes, name) for name in ("score_sums", "score_squares", "score_histograms")}
    return facts | {name: array for name, array in scores.items() if array is not None} | dict(votes.evidence)


def _differences(found: dict[str, Any], source: dict[str, Any]) -> list[str]:
    """The names of what a certificate has and its source has not, or has otherwise."""
    return [name for name, value in found.items() if name not in source or not _equal(value, source[name])]


def _differences_from_run(votes: Votes, run_dir: Path) -> list[str]:
    """In what the votes of a run are not what `run.json` and the shards say."""
    plain = _said_of_examples(run_dir / "run.json")
    if plain is not None:
        # A run that keeps examples trains nothing and has no shards; what draws random numbers is another kind of run.
        return _differences(plain, _facts(votes)) if isinstance(votes.mechanism, Deterministic) else ["mechanism"]
    from mithridate.training.run_directory import recorded

    manifest, total = recorded(run_dir)
    said = {
        "counts": total["counts"],
        "recipe": manifest.recipe,
        "fingerprint": manifest.data_fingerprint,
        "runs": (manifest.run_id,),
        "size": manifest.size,
        "conditions": to_plain(manifest.assumptions),
    }
    return _differences(said, _facts(votes))


def _said_of_examples(path: Path) -> dict[str, Any] | None:
    """What `run.json` says of a run that keeps examples; None where the run trained models."""
    try:
        values = parse_json(read_file(path))
        if values.get("kind") != "examples":
            return None
        size = None if values["size"] is None else Size.from_dict(values["size"])
        said = {"recipe": values["recipe"], "fingerprint": values["data_fingerprint"], "size": size}
        return {**said, "conditions": to_plain(from_plain(values["assumptions"]))}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{path} is damaged ({error!s:.200}); verify without it.") from error


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return np.array_equal(np.asarray(first), np.asarray(second))
    return first == second

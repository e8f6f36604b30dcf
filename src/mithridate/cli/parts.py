"""`mithridate split` and `merge`: the shards of a run handed out to several machines, and all votes in one file."""

import argparse
import itertools
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from mithridate._text import counted, printable, shown
from mithridate._validate import positive_integer
from mithridate.cli import _shared
from mithridate.core.conditions import in_json
from mithridate.core.mechanism import Deterministic
from mithridate.core.merging import InstanceRanges, first_gap, instances_in_words, merge_order
from mithridate.core.units import unit_in_json
from mithridate.core.votes import Votes
from mithridate.errors import ArtifactError, ConfigError, MithridateError
from mithridate.reporting import sentences as words
from mithridate.training.run_directory import Manifest, missing_shards
from mithridate.training.shared_run import hand_out, in_words, stretches

_SPLIT_EXAMPLES = """example:
  mithridate train --prepare --instances 1000 --in-flight 25 --run-dir runs/mine flowers.toml
  mithridate split runs/mine --into 10 -o parts
  mithridate train --run-dir parts/$SLURM_ARRAY_TASK_ID flowers.toml        on machine or task 0 to 9
  mithridate merge parts/* -o votes.npz                                     once all are done

A directory holds the private seeds of its own instances; whoever has it can predict these and no others.
"""
_MERGE_EXAMPLES = """examples:
  mithridate merge monday.npz tuesday.npz -o votes.npz        two runs of one configuration
  mithridate merge runs/part-* -o votes.npz                   parts of one run, a directory from each machine
  sbatch --dependency=afterok:$ARRAY_JOB --wrap "mithridate merge parts/*.npz -o votes.npz"
                                                              the same on Slurm, once all tasks of an array are done

Merge all that was trained: to leave instances out because of how they voted voids every certificate.
"""


def add_split(command: _shared.NewCommand) -> None:
    """Register `mithridate split`."""
    parser = command(
        help="hand out the shards of a run to several machines",
        description="Make directories 0, 1, ... in which the shards of a run can be trained apart, each with the seeds "
        "of its\nown instances and no others. Their votes merge.",
        epilog=_SPLIT_EXAMPLES,
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="a run that `mithridate train --prepare` started")
    parser.add_argument("--into", type=int, metavar="N", required=True, help="number of directories")
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", required=True, help="folder that they go to")


def run_split(arguments: argparse.Namespace) -> int:
    """Split and print."""
    positive_integer(into=arguments.into)
    manifest = Manifest.read(arguments.run_dir / "run.json")
    count, into = len(manifest.ranges), arguments.into
    if into > count:
        raise ConfigError(
            f"The run has {count} shards, which are too few for {into} directories; split into {count} or fewer, or "
            "start a run with fewer models in flight (--in-flight)."
        )
    bounds = [number * count // into for number in range(into + 1)]
    parts = {arguments.out / str(n): range(*pair) for n, pair in enumerate(itertools.pairwise(bounds))}
    for folder, shards in parts.items():
        hand_out(arguments.run_dir, shards, folder)
    done = sorted({*range(count)} - {*missing_shards(arguments.run_dir, manifest)})
    if arguments.json:
        folders = [{"run_dir": str(folder), "shards": [part.start, part.stop]} for folder, part in parts.items()]
        _shared.print_json({"run_id": manifest.run_id, "shards": count, "done_shards": done, "parts": folders})
        return 0
    console, out = _shared.console(), shlex.quote(str(arguments.out))
    for folder, shards in parts.items():
        console.print(printable(f"{folder}: shards {in_words(shards)}"), soft_wrap=True)
    if done:
        console.print(
            printable(
                f"Done already in {arguments.run_dir}: shards {in_words(done)}. Copy their files from its folders "
                "shards and models to where they are handed out, or they are trained again there."
            ),
            soft_wrap=True,
        )
    console.print(f"Train each with the options of the run and --run-dir {out}/N; then:", soft_wrap=True)
    console.print(f"mithridate merge {out}/* -o votes.npz", soft_wrap=True)
    return 0


class _Source(NamedTuple):
    """A file of votes: what it holds, without the votes themselves, of which many files may have much."""

    path: Path
    order: tuple[Any, ...]
    instances: int
    run_ids: tuple[str, ...]
    shards: dict[str, InstanceRanges]

    @classmethod
    def of(cls, path: Path) -> "_Source":
        """What is in a file."""
        votes = _load(path)
        return cls(path, merge_order(votes), votes.instances, votes.run_ids, dict(votes.shards))


def add_merge(command: _shared.NewCommand) -> None:
    """Register `mithridate merge`."""
    parser = command(
        help="merge votes of several runs, or of parts of one",
        description="Merge votes of independent runs of one configuration on the same data, or of parts of one run.\n"
        "An instance that is in two files is refused, and so are other mechanisms, data, inputs or recipes.\n"
        "So are gaps: instances that are missing before others of the same run.\n"
        "The order of the files does not matter.",
        epilog=_MERGE_EXAMPLES,
    )
    parser.add_argument(
        "votes",
        metavar="RUN_DIR_OR_VOTES",
        type=Path,
        nargs="+",
        help="directories of runs that are finished, or of which some shards are, or votes files (.npz); at least two",
    )
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE", required=True, help="where the merged votes go (.npz)"
    )
    parser.add_argument("--force", action="store_true", help="replace FILE where it exists; never one that is merged")
    parser.add_argument(
        "--incomplete",
        action="store_true",
        help="merge although instances are missing before others; claims then hold only if nobody chose the missing "
        "ones by how they vote, and --bounds anytime refuses such votes",
    )


def run_merge(arguments: argparse.Namespace) -> int:
    """Merge and print."""
    given = [(path, _votes_files(path)) for path in arguments.votes]
    paths = [file for _, files in given for file in files]
    _check_several(paths)
    _check_different(paths)
    _check_out(arguments.out, paths, force=arguments.force)
    sources = [source for path, files in given for source in _sources(path, files)]
    _check_several([source.path for source in sources])
    sources.sort(key=lambda source: source.order)
    merged = _merged(sources)
    # What a function of the data is certified from must be whole anyway.
    if not (arguments.incomplete or isinstance(merged.mechanism, Deterministic)):
        _check_without_gaps(merged)
    merged.save(arguments.out)
    if arguments.json:
        _shared.print_json(_summary(merged, sources, arguments.out))
    else:
        _print(_shared.console(), merged, sources, arguments.out)
    return 0


# --- files ------------------------------------------------------------------------------------------------------------


def _votes_files(path: Path) -> list[Path]:
    """The votes of a run, or of those of its shards that were trained there, in the place of its directory."""
    if not os.path.isdir(path):
        return [path]
    if os.path.isfile(path / "votes.npz"):
        return [path / "votes.npz"]
    parts = sorted((path / "parts").glob("*.npz"))
    if not parts:
        raise _shared.no_votes(path)
    return parts


def _check_several(paths: Sequence[Path]) -> None:
    if len(paths) < 2:
        raise ConfigError(f"{paths[0]} has nothing to merge with; give at least two files, or certify it by itself.")


def _check_different(paths: Sequence[Path]) -> None:
    seen: dict[tuple[int, int], Path] = {}
    for path in filter(os.path.exists, paths):
        status = os.stat(path)
        known = seen.setdefault((status.st_dev, status.st_ino), path)
        if known is not path:
            raise ConfigError(f"{path} is the same file as {known}: its votes would count twice. Give it once.")


def _check_out(out: Path, paths: Sequence[Path], *, force: bool) -> None:
    _shared.check_writable(out)
    _shared.check_apart(out, *paths)
    if os.path.exists(out) and not os.path.isfile(out):
        raise ArtifactError(f"Cannot write {out}: it is not a plain file. Choose another name.")
    if os.path.lexists(out) and not force:
        raise ArtifactError(f"{out} exists already; add --force to replace it, or choose another name.")


def _check_without_gaps(votes: Votes) -> None:
    """Refuse parts of a run without instances that come before others: one could be left out for what it votes."""
    for run, parts in votes.shards.items():
        gap = first_gap(parts)
        if gap is not None:
            raise ConfigError(
                f"These files lack {instances_in_words(*gap)} of the run {shown(run)}, and hold later ones. Train the "
                "missing ones (mithridate train --shards), and merge all. If they are lost for a reason that has "
                "nothing to do with what they vote, add --incomplete."
            )


def _load(path: Path) -> Votes:
    try:
        return Votes.load(path)
    except MithridateError as error:
        if str(path) in str(error):
            raise
        raise ArtifactError(f"{path}: {error}") from error


def _sources(path: Path, files: Sequence[Path]) -> list[_Source]:
    """What the files of an argument hold. Of parts in one directory that overlap, those that together hold most."""
    sources = [_Source.of(file) for file in files]
    runs = {run for source in sources for run in source.run_ids}
    if path in files or len(runs) != 1 or not all(source.shards for source in sources):
        return sources
    taken = _without_overlaps(sources)
    left = _done(path, sources) - _instances(taken)
    if left:
        _shared.console(error=True).print(printable(_left_out(path, left)), soft_wrap=True)
    return taken


def _without_overlaps(sources: Sequence[_Source]) -> list[_Source]:
    """Those that hold most instances without one in common; tasks may have been asked for the same shards."""
    best: list[tuple[int, int, list[_Source]]] = [(0, 0, [])]  # instances, where they end, and who holds them
    for source in sorted(sources, key=lambda source: max(_instances([source]))):
        own = _instances([source])
        held, _, before = max((b for b in best if b[1] <= min(own)), key=lambda b: b[0])
        best.append((held + len(own), max(own) + 1, [*before, source]))
    return max(best, key=lambda b: b[0])[2]


def _instances(sources: Sequence[_Source]) -> set[int]:
    """Of one run."""
    found = [part for source in sources for parts in source.shards.values() for part in parts]
    return {number for part in found for number in range(*part)}


def _done(run_dir: Path, sources: Sequence[_Source]) -> set[int]:
    """The instances that were trained in a directory, whether a part holds them or only their shard."""
    done = _instances(sources)
    if os.path.isfile(run_dir / "run.json"):
        manifest = Manifest.read(run_dir / "run.json")
        missing = set(missing_shards(run_dir, manifest))
        done.update(*(group for number, group in enumerate(manifest.ranges) if number not in missing))
    return done


def _left_out(run_dir: Path, instances: set[int]) -> str:
    said = f"Left out: the instances {in_words(sorted(instances))} of {run_dir}, which are done, but "
    if not os.path.isfile(run_dir / "run.json"):
        return f"{said}in parts that overlap with others only. Train parts that do not overlap to have them."
    ranges = Manifest.read(run_dir / "run.json").ranges
    numbers = [number for number, group in enumerate(ranges) if not instances.isdisjoint(group)]
    flags = ", ".join(f"--shards {shards.start}:{shards.stop}" for shards in stretches(numbers))
    return f"{said}in no part without others. Its `mithridate train` with {flags} writes that; then merge again."


# --- merging ----------------------------------------------------------------------------------------------------------


def _merged(sources: Sequence[_Source]) -> Votes:
    """The votes of all files, of which no more than one is in memory beside their sum."""
    merged = _load(sources[0].path)
    for number, source in enumerate(sources[1:], start=1):
        votes = _load(source.path)
        try:
            merged = merged.merge(votes)
        except ConfigError as error:
            raise _explained(error, votes, source, sources[:number]) from error
    return merged


def _explained(error: ConfigError, votes: Votes, source: _Source, before: Sequence[_Source]) -> ConfigError:
    """The error, with the two files that do not go together."""
    for other in before:
        try:
            _load(other.path).merge(votes)
        except ConfigError as reason:
            return ConfigError(f"{source.path} does not merge with {other.path}. {reason}")
    return ConfigError(f"{source.path} does not merge with the files before it. {error}")


# --- what is printed --------------------------------------------------------------------------------------------------


def _summary(votes: Votes, sources: Sequence[_Source], out: Path) -> dict[str, Any]:
    return {
        "votes": str(out),
        "instances": votes.instances,
        "examples": votes.examples,
        "classes": votes.classes,
        "run_ids": list(votes.run_ids),
        "shards": dict(votes.shards),
        "mechanism": votes.mechanism.to_dict(),
        "recipe": votes.recipe,
        "devices": dict(votes.devices),
        **unit_in_json(votes.unit),
        **in_json(votes.statements),
        "assumptions": list(map(str, votes.statements)),
        "files": [
            {"path": str(each.path), "instances": each.instances, "run_ids": list(each.run_ids), "shards": each.shards}
            for each in sources
        ],
    }


def _print(console: Console, votes: Votes, sources: Sequence[_Source], out: Path) -> None:
    runs = len(votes.run_ids)
    table = Table(title=f"{votes.tally}, {counted(runs, 'run') if runs else 'no named runs'}")
    table.add_column("file", overflow="fold")
    table.add_column("instances", justify="right")
    table.add_column("run", overflow="fold")
    table.add_column("which of its instances", overflow="fold")
    for source in sources:
        table.add_row(printable(str(source.path)), f"{source.instances:,}", *_runs(source))
    console.print(table)
    for run, parts in votes.shards.items():
        console.print(f"Of the run {printable(run)}: {_ranges(parts)}.", soft_wrap=True)
    for sentence in words.noted(votes.statements):
        console.print(sentence, soft_wrap=True)
    command = f"mithridate certify {shlex.quote(str(out))}"
    console.print(printable(f"Written to {out}; certify it with: {command}"), soft_wrap=True)
    _shared.print_conditions(console, votes.statements)


def _runs(source: _Source) -> tuple[str, str]:
    if not source.run_ids:
        return "not named", ""
    parts = (_ranges(source.shards[run]) if run in source.shards else "all" for run in source.run_ids)
    return printable("\n".join(source.run_ids)), "\n".join(parts)


def _ranges(parts: InstanceRanges) -> str:
    """Parts of a run in words.

    >>> _ranges(((0, 3), (7, 8)))
    'instances 0 to 2, 7'
    """
    words = (f"{first} to {stop - 1}" if stop - first > 1 else str(first) for first, stop in parts)
    return f"instances {', '.join(words)}"

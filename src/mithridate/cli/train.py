"""`mithridate train`: a defence on your data, and how it votes."""

import argparse
import contextlib
import dataclasses
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import mithridate
from mithridate._io.artifacts import write_npz
from mithridate._io.files import read_file, write_atomically
from mithridate._progress import Clock, progress_bar, shown
from mithridate._text import capitalised, counted
from mithridate.certifying.certification import predicted
from mithridate.cli import _ending, _shared
from mithridate.cli._flags import CONFIG, as_typed
from mithridate.core.conditions import in_json
from mithridate.core.labels import commonest, single_label
from mithridate.core.mechanism import Deterministic
from mithridate.core.units import unit_in_json, words_of
from mithridate.core.votes import Votes
from mithridate.data import Examples
from mithridate.defences.automatic import AUTO
from mithridate.defences.base import kind_of_device
from mithridate.defences.registry import names, options
from mithridate.errors import ArtifactError, ConfigError
from mithridate.projects import BACKENDS, CLUSTER, RUN_PROJECT, RUNTIME, Project, read_project, run_toml
from mithridate.recipes import presets
from mithridate.reporting import sentences as words
from mithridate.training.config import PRECISIONS
from mithridate.training.order import Order, Ray, RuntimeOptions, cap_of, compose
from mithridate.training.run_directory import Manifest, is_handed_out, missing_shards, path_of
from mithridate.training.shared_run import in_words, parse_shards, stretches

_TRAIN_EXAMPLES = """examples:
  mithridate init flowers.csv --label kind -o flowers.toml
  mithridate train flowers.toml
  mithridate train flowers.toml --method nearest-neighbours
  mithridate train --recipe mnist-strong
  mithridate train --train digits.npz --test more-digits.npz --run-dir runs/digits
  mithridate train --shards 0:10 flowers.toml       ten shards of it, while other tasks train others (docs/scaling.md)
  mithridate train --train mnist-train.npz --test mnist-test.npz --model lenet5 --run-dir runs/mnist \\
      --instances 1000 --noise-multiplier 3 --sample-rate 0.001 --steps 1000 --max-grad-norm 0.8 --learning-rate 0.1

What is left out is chosen by public facts (kind of data, step of its size, classes), and shown before training starts;
without --method that is the method, too. Files are what `mithridate init` was shown, or .npz with arrays 'x' (inputs)
and 'y' (labels; optional for --test). After an interruption of any kind the same command resumes where it ended.
"""
# What a project file can say, too, beside the constants of the methods.
_WANTED = ("method", "radius", "private", "calibrate", *RUNTIME, "backend", *CLUSTER)
# Test images above this size are not kept for the report.
_PICTURE_BYTES = 1 << 26
# Models are kept unless they would take more than this, or the user says otherwise.
_KEPT_BYTES = 1 << 30


def add_train(command: _shared.NewCommand) -> None:
    """Register `mithridate train`."""
    parser = command(
        help="train a defence on your data",
        description="Train a defence on one data set, and count how it votes on the test inputs.",
        epilog=_TRAIN_EXAMPLES,
        allow_abbrev=False,  # commands are repeated with other shards, for which every flag has to be found
    )
    parser.add_argument("project", metavar=CONFIG, type=Path, nargs="?", help="file that `init` wrote")
    files = parser.add_argument_group("data")
    files.add_argument("--train", type=Path, metavar="FILE", help="training data")
    files.add_argument("--test", type=Path, metavar="FILE", help="inputs to vote on; else some of --train are held out")
    _shared.add_units(files)
    files.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="folder with a well-known data set (else MITHRIDATE_DATA)"
    )
    files.add_argument("--run-dir", type=Path, metavar="DIR", help="where the run is kept (run, or runs/NAME)")
    method = parser.add_argument_group("method")
    method.add_argument(
        "--method",
        choices=(AUTO, *names()),
        metavar="NAME",
        help=f"{AUTO} (chosen by public facts), {', '.join(names())}",
    )
    method.add_argument("--radius", type=int, metavar="R", help="auto: how many changes predictions should withstand")
    method.add_argument("--private", action="store_true", default=None, help="auto: the models must be private")
    method.add_argument(
        "--calibrate", metavar="FILE", help="trusted inputs, without labels: centre and directions of --features"
    )
    _add_constants(parser)
    _add_runtime(parser)
    _add_shards(parser)


def _add_constants(parser: argparse.ArgumentParser) -> None:
    """A flag for every constant of every method, as the methods declare them."""
    group = parser.add_argument_group("constants of the method (fixed before anyone looks at the training data)")
    for name, option in options().items():
        flag = f"--{name.replace('_', '-')}"
        if option.kind is bool:
            group.add_argument(flag, action="store_true", default=None, help=option.words)
            continue
        shown: Any = {} if option.choices is not None else {"metavar": option.metavar}
        group.add_argument(
            flag, type=option.kind, choices=option.choices, nargs=option.count, help=option.words, **shown
        )


def _add_runtime(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it runs (does not change the certificate)")
    group.add_argument("--device", metavar="NAME", help="cpu, cuda, mps or auto (auto)")
    group.add_argument("--in-flight", type=int, metavar="M", help="models trained at a time (from memory)")
    group.add_argument("--precision", choices=PRECISIONS, help="of matrix products (auto)")
    group.add_argument(
        "--keep-models",
        action=argparse.BooleanOptionalAction,
        help="keep the weights, for mithridate predict (unless they take more than 1 GiB)",
    )
    group.add_argument(
        "--root-seed",
        type=Path,
        metavar="FILE",
        help="file with 64 hexadecimal digits to reproduce a run; noted as an assumption",
    )
    group = parser.add_argument_group("on a cluster (needs the ray extra)")
    group.add_argument("--backend", choices=BACKENDS, help="who trains (local); ray alone starts a cluster here")
    group.add_argument("--address", metavar="A", help="of a running cluster: auto, host:port or ray://host:port")
    group.add_argument("--workers", type=int, metavar="N", help="at most so many at a time (as many as there are)")
    group.add_argument("--gpus-per-worker", type=float, metavar="G", help="share of a GPU (1 where there are GPUs)")


def _add_shards(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("in several processes (array tasks; one shared --run-dir, or a copy for each)")
    group.add_argument(
        "--shards",
        metavar="A:B",
        help="train the shards A up to before B only (A:, :B or one number, too); a shard is a group of at most "
        "--in-flight instances, and together they are the run",
    )
    group.add_argument(
        "--prepare", action="store_true", help="start the run, say which shards it has, and train nothing"
    )


def run_train(arguments: argparse.Namespace) -> int:
    """Train and print."""
    shards = None if arguments.shards is None else parse_shards(arguments.shards)
    if arguments.prepare and shards is not None:
        raise ConfigError("--prepare trains nothing; leave --shards out, or --prepare.")
    project = _project(arguments)
    defence, root_seed = project.defence(), _root_seed(arguments.root_seed)
    # A bar where something may be downloaded.
    with progress_bar("downloading") if project.data_name else contextlib.nullcontext() as progress:
        training, test = project.examples(progress)
    console = _shared.console(error=arguments.json)
    number = _about_number(project.options, training)
    for sentence in dict.fromkeys((*training.notes, *test.notes, *number)):
        console.print(f"Note: {sentence}")
    options = project.runtime()
    device = device_type(options.get("device", "auto"), options["backend"])
    order = compose(defence, training, test, device=device, root_seed=root_seed)
    for sentence in _about_units(order):
        console.print(f"Note: {sentence}")
    console.print(as_typed(order.choice.words, arguments.flags))
    run_dir = project.run_dir or Path("run")
    runtime = runtime_for(order, run_dir, options, shards)
    if arguments.prepare:
        with _quiet_output(runtime.backend):
            manifest = order.defence.prepare(order, runtime)
        return _prepared(run_dir, manifest, console, arguments)
    _ending.kept_in(run_dir)
    votes, clock = carried_out(order, runtime)
    _keep_project(run_dir, project)
    part = _Part.of(votes, run_dir, arguments.words) if votes.shards else None
    if arguments.json:
        told = {} if part is None else part.to_dict()
        _shared.print_json({**_summary(order, votes, run_dir, clock), **told})
    else:
        _print(console, votes, run_dir, clock, part)
    return 0


def _about_number(options: Mapping[str, Any], training: Examples) -> tuple[str, ...]:
    """That the declared number of examples is far from theirs: the claim holds, but perhaps a digit is missing."""
    unit = None if training.units is None else training.units.unit
    counts = words_of(unit)
    declared, found = options.get(counts.declared_as), len(training.x) if unit is None else unit.count
    if declared is None or found <= 2 * declared <= 4 * found:
        return ()
    return (
        f"{counts.declared_as} is declared as {declared:,}, but there are {counts.counted(found)} to train on; what "
        f"follows their number is chosen for {declared:,}.",
    )


def _about_units(order: Order) -> Iterator[str]:
    """How many units the inputs come from, and what does not enter of large ones."""
    units, asked = order.given.units, order.test.units
    if units is None:
        return
    if asked is not None:
        yield f"The {counted(len(asked), 'input')} are those of {asked.unit.counted(len(asked.names))}."
    cap, sizes = cap_of(order.defence), units.sizes
    large = int((sizes > cap).sum())
    if large:
        have = f"{units.unit.counted(large)} {'has' if large == 1 else 'have'}"
        yield (
            f"{have} more than {counted(cap, 'example')}; of each as many enter, those with the smallest hashes, and "
            f"{int((sizes - cap).clip(0).sum()):,} do not (--unit-cap)."
        )


def _prepared(run_dir: Path, manifest: Manifest, console: Console, arguments: argparse.Namespace) -> int:
    """Say which shards there are to train."""
    count, missing = len(manifest.ranges), missing_shards(run_dir, manifest)
    if arguments.json:
        told = {"run_dir": str(run_dir), "run_id": manifest.run_id, "instances": manifest.instances}
        _shared.print_json({**told, "in_flight": manifest.in_flight, "shards": count, "missing_shards": missing})
        return 0
    console.print(
        f"The run in {run_dir} has {manifest.instances:,} instances in {count:,} shards of at most "
        f"{manifest.in_flight:,}: --shards 0:{count}. Missing: {in_words(missing) or 'none'}.",
        soft_wrap=True,
    )
    words = [word for word in arguments.words if word != "--prepare"]
    console.print(f"Next: {_command(words, stretches(missing)[0] if missing else None)}", soft_wrap=True)
    return 0


@dataclasses.dataclass(frozen=True)
class _Part:
    """What one task did of a run, and what is left to do."""

    path: Path  # of its votes
    shards: range  # that it was asked for
    count: int  # of all shards
    missing: list[int]
    whole: bool  # whether the votes of the whole run are there
    next: str  # the command that goes on

    @classmethod
    def of(cls, votes: Votes, run_dir: Path, words: Sequence[str]) -> "_Part":
        """Of the votes that a task gave."""
        manifest = Manifest.read(run_dir / "run.json")
        instances = range(*votes.shards[manifest.run_id][0])
        numbers = [number for number, group in enumerate(manifest.ranges) if group.start in instances]
        missing, path = missing_shards(run_dir, manifest), path_of(run_dir, "parts", instances)
        whole = (run_dir / "votes.npz").exists()
        if whole:
            following = f"mithridate certify {shlex.quote(str(run_dir))}"
        elif is_handed_out(run_dir):
            following = f"mithridate merge {shlex.quote(str(path))} ... -o votes.npz"
        else:
            following = _command(words, stretches(missing)[0] if missing else None)
        return cls(path, range(numbers[0], numbers[-1] + 1), len(manifest.ranges), missing, whole, following)

    def to_dict(self) -> dict[str, Any]:
        """In plain JSON values."""
        shards = [self.shards.start, self.shards.stop]
        return {"votes": str(self.path), "shards": shards, "missing_shards": self.missing, "next": self.next}

    def in_words(self) -> Iterator[str]:
        """What is done and what is next, a line each."""
        yield f"Shards {in_words(self.shards)} of {self.count:,} are done; their votes are in {self.path}."
        if self.whole:
            yield f"All shards are here, and the votes of the whole run are in votes.npz. Next: {self.next}"
        elif self.missing:
            yield f"Not here (yet): shards {in_words(self.missing)}. Next, unless other tasks train them: {self.next}"
        else:
            yield f"All shards have files, but not all can be read. Next, which trains those again: {self.next}"


def _command(words: Sequence[str], shards: range | None = None) -> str:
    """The command of these words, for all shards or for some."""
    left, following = list[str](), iter(words)
    for word in following:
        flag, equals, _ = word.partition("=")
        if flag != "--shards":
            left.append(word)
        elif not equals:
            next(following, None)
    command = shlex.join(["mithridate", *left])
    return command if shards is None else command.replace(" train", f" train --shards {shards.start}:{shards.stop}", 1)


def _project(arguments: argparse.Namespace) -> Project:
    """The project file, if there is one, with the flags taking precedence."""
    project = Project() if arguments.project is None else read_project(arguments.project)
    flags = {name: getattr(arguments, name) for name in (*options(), *_WANTED)}
    given = {name: value for name, value in flags.items() if value is not None}
    files = {name: getattr(arguments, name) for name in ("train", "test", "data_dir", "run_dir")}
    files = {name: value for name, value in files.items() if value is not None}
    if "train" in files:  # in place of the data set of the file
        project = dataclasses.replace(project, name=None, data_dir=None, updated=None)
    project = dataclasses.replace(project, **files, options={**project.options, **given})
    project = project.with_units(arguments.unit, arguments.units)
    if project.run_dir is None and arguments.recipe is not None:
        return dataclasses.replace(project, run_dir=Path("runs") / presets.preset(arguments.recipe).name)
    return project


def _root_seed(path: Path | None) -> bytes | None:
    if path is None:
        return None
    content = read_file(path)
    try:
        return bytes.fromhex(content.decode("ascii").strip())
    except ValueError:
        raise ArtifactError(f"{path} does not hold a root seed; expected 64 hexadecimal digits.") from None


# --- how it runs ------------------------------------------------------------------------------------------------------


def carried_out(order: Order, runtime: RuntimeOptions) -> tuple[Votes, Clock]:
    """Train all or some shards, or resume, showing how far it is."""
    with shown() as clock, _quiet_output(runtime.backend):
        votes = order.run(dataclasses.replace(runtime, progress=clock))
    if runtime.folder is not None:
        _keep_inputs(runtime.folder, order.test)
    return votes, clock


def runtime_for(order: Order, run_dir: Path, options: Mapping[str, Any], shards: slice | None) -> RuntimeOptions:
    """How an order runs from the command line: what predictions need is kept unless it is much."""
    if order.defence.needs_torch:
        try:
            _ = mithridate.train
        except ModuleNotFoundError as error:
            raise ConfigError(str(error)) from error
    kept = {"keep_models": order.defence.kept_bytes(order) <= _KEPT_BYTES}
    return RuntimeOptions(run_dir=run_dir, shards=shards, **{**kept, **options})


def _keep_inputs(run_dir: Path, test: Examples) -> None:
    """Leave pictures and names of the inputs beside the votes, for the report; a full disk costs those alone."""
    path = run_dir / "inputs.npz"
    arrays: dict[str, Any] = {}
    if test.x.dtype == np.uint8 and test.x.ndim in (3, 4) and test.x.nbytes <= _PICTURE_BYTES:
        arrays["x"] = test.x
    if test.ids is not None:
        arrays["ids"] = np.array(test.ids, dtype=np.str_)
    if not arrays or path.exists():
        return
    with contextlib.suppress(ArtifactError):
        with write_atomically(path) as file:
            write_npz(file, arrays)


def _keep_project(run_dir: Path, project: Project) -> None:
    """Leave beside the votes what they were made from, for `mithridate audit`; where that has no name, it asks."""
    path = run_dir / RUN_PROJECT
    with contextlib.suppress(ArtifactError, ConfigError):
        content = run_toml(project, path).encode()
        if not path.exists() or read_file(path) != content:
            with write_atomically(path) as file:
                file.write(content)


def device_type(name: str, backend: Ray | None = None) -> str:
    """The kind of device that training will run on; of a cluster, as far as that is known here."""
    if isinstance(backend, Ray) and (name in ("cpu", "cuda") or backend.gpus_per_worker):
        return "cuda" if name == "auto" else name
    return kind_of_device(name)


def _quiet_output(backend: Ray | None) -> contextlib.AbstractContextManager[Any]:
    """Keep the output for results: Ray reports nodes that it lost there."""
    return contextlib.redirect_stdout(sys.stderr) if isinstance(backend, Ray) else contextlib.nullcontext()


# --- what is printed --------------------------------------------------------------------------------------------------


def _summary(order: Order, votes: Votes, run_dir: Path, clock: Clock) -> dict[str, Any]:
    return {
        "method": order.defence.name,
        "votes": str(run_dir / "votes.npz"),
        "run_dir": str(run_dir),
        "run_id": votes.run_ids[0] if votes.run_ids else None,
        "instances": votes.instances,
        "examples": votes.examples,
        "classes": votes.classes,
        "mechanism": votes.mechanism.to_dict(),
        "recipe": votes.recipe,
        **in_json(votes.statements),
        "assumptions": list(map(str, votes.statements)),
        "devices": dict(votes.devices),
        "model_steps_per_s": clock.speed,
        "seconds": clock.seconds,
        **accuracy_summary(votes),
        "chosen": order.choice.details,
        "size": None if votes.size is None else votes.size.to_dict(),
        **unit_in_json(votes.unit),
    }


def _print(console: Console, votes: Votes, run_dir: Path, clock: Clock, part: _Part | None) -> None:
    speed = f" ({clock.speed_in_words or 'they were finished before'})" if votes.run_ids else ""
    console.print(f"{capitalised(votes.tally)} voted on {votes.examples:,} inputs{speed}.")
    for sentence in (*accuracy_sentences(votes), *words.noted(votes.statements)):
        console.print(sentence)
    if part is not None:
        for line in part.in_words():
            console.print(line, soft_wrap=True)
    else:
        command = f"mithridate certify {shlex.quote(str(run_dir))}"
        console.print(f"Written to {run_dir / 'votes.npz'}; certify it with: {command}", soft_wrap=True)
    _shared.print_conditions(console, votes.statements)


def accuracy(votes: Votes) -> float | None:
    """Share of the examples whose predicted label is the true one, None where it is not known."""
    return None if votes.labels is None else float(np.mean(predicted(votes) == votes.labels))


def accuracy_summary(votes: Votes) -> dict[str, Any]:
    """Accuracy of the predictions and what it is measured by, as JSON values."""
    return {
        "accuracy": accuracy(votes),
        "baseline": None if votes.labels is None else commonest(votes.labels).share,
        "single_label": single_label(predicted(votes)) is not None,
    }


def accuracy_sentence(votes: Votes, correct: float) -> str:
    """The same in words, by what decides."""
    who = "prediction" if isinstance(votes.mechanism, Deterministic) else "majority"
    return f"The {who} is correct on {_shared.percent(correct)} of them."


def accuracy_sentences(votes: Votes) -> list[str]:
    """All of it in words: that there is but one label first, where that is so."""
    correct = accuracy(votes)
    said = [] if correct is None else [accuracy_sentence(votes, correct)]
    opening = words.one_label(votes, predicted(votes))  # with the baseline
    return [*opening, *said] if opening else [*said, *words.baseline_sentence(votes)]

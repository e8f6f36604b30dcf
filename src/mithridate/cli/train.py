"""`mithridate train`: many private models at once, and how they vote."""

import argparse
import contextlib
import dataclasses
import logging
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from mithridate.cli import _options, _output
from mithridate.config import OPTIMIZERS, PRECISIONS, SCHEDULES, TrainConfig
from mithridate.data.arrays import read_arrays
from mithridate.errors import ArtifactError, ConfigError
from mithridate.votes import Votes

_EXAMPLES = """example:
  mithridate train --train mnist-train.npz --test mnist-test.npz --model lenet5 --run-dir runs/mnist \\
      --instances 1000 --noise-multiplier 3 --sample-rate 0.001 --steps 1000 --max-grad-norm 0.8 --learning-rate 0.1
  mithridate certify runs/mnist/votes.npz

The files hold arrays 'x' (inputs) and 'y' (labels; optional for --test). After an interruption of any kind the same
command goes on where it ended.
"""
# Without a terminal, a line is written after so many seconds, or this share of the work.
_LINE_SECONDS = 10.0
_LINE_SHARE = 0.05


def add_to(commands: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "train",
        help="train many private models at once",
        description="Train many private models on one data set, and count how they vote on the test inputs.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    files = parser.add_argument_group("data and model")
    files.add_argument("--train", type=Path, metavar="FILE.npz", required=True, help="training data, arrays x and y")
    files.add_argument("--test", type=Path, metavar="FILE.npz", required=True, help="inputs to vote on, x (and y)")
    files.add_argument("--model", metavar="NAME", required=True, help="linear, mlp, lenet5, opa-tut or resnet18")
    files.add_argument(
        "--features", metavar="NAME", help="train on fixed features: oriented-gradients, unit-norm or hashed-ngrams"
    )
    files.add_argument("--run-dir", type=Path, metavar="DIR", default=Path("run"), help="where the run is kept (run)")
    _options.add_mechanism(parser, required=True)
    _add_recipe(parser)
    _add_constants(parser)
    _add_runtime(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(run=run)


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("recipe (fixed before anyone looks at the training data)")
    group.add_argument("--instances", type=int, metavar="P", required=True, help="number of models that vote")
    group.add_argument("--max-grad-norm", type=float, metavar="C", required=True, help="clipping norm")
    group.add_argument("--learning-rate", type=float, metavar="LR", required=True, help="step size")
    group.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    group.add_argument("--momentum", type=float, metavar="M", default=0.0, help="of sgd")
    group.add_argument("--weight-decay", type=float, metavar="W", default=0.0)
    group.add_argument("--betas", type=float, nargs=2, metavar=("B1", "B2"), default=(0.9, 0.999), help="of adam")
    group.add_argument("--schedule", choices=SCHEDULES, default="constant", help="of the step size")
    group.add_argument("--average-iterates", action="store_true", help="vote with the mean of the weights of all steps")
    group.add_argument("--score-bins", type=int, metavar="N", default=32, help="bins of the score histograms, 0: none")


def _add_constants(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("public constants (read off the data where they are left out, which is noted)")
    group.add_argument("--num-train", type=int, metavar="N", help="number of training examples")
    group.add_argument("--classes", type=int, metavar="L", help="number of labels")
    group.add_argument("--divisor", type=float, metavar="D", help="of every noisy sum (sample rate x number)")
    group.add_argument("--pixel-mean", type=float, nargs="+", metavar="X", help="of uint8 images, one or one a channel")
    group.add_argument("--pixel-std", type=float, nargs="+", metavar="X", help="likewise")


def _add_runtime(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it runs (does not change the certificate)")
    group.add_argument("--device", default="auto", metavar="NAME", help="cpu, cuda, mps or auto")
    group.add_argument("--in-flight", type=int, metavar="M", help="models trained at a time (from memory)")
    group.add_argument("--precision", choices=PRECISIONS, default="auto", help="of matrix products")
    group.add_argument("--keep-models", action="store_true", help="keep the weights, for mithridate predict")
    group.add_argument(
        "--root-seed",
        type=Path,
        metavar="FILE",
        help="file with 64 hexadecimal digits to reproduce a run; noted as an assumption",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train and print."""
    config = _config(arguments)
    training_set = read_arrays(arguments.train, labels=True)
    test_set = read_arrays(arguments.test, labels=False)
    train = import_training("train")
    options = {name: getattr(arguments, name) for name in _TRAIN_OPTIONS}
    try:
        with _shown(_Clock()) as clock:
            votes = train(
                training_set,
                test_set,
                config=config,
                root_seed=_root_seed(arguments.root_seed),
                progress=clock,
                **options,
            )
    except KeyboardInterrupt:
        print(
            f"mithridate: interrupted; what is finished is kept in {arguments.run_dir}. "
            "The same command goes on from there.",
            file=sys.stderr,
        )
        return 130
    if arguments.json:
        _output.print_json(_summary(votes, arguments.run_dir, clock))
    else:
        _print(_output.console(), votes, arguments.run_dir, clock)
    return 0


_TRAIN_OPTIONS = ("model", "features", "run_dir", "device", "in_flight", "precision", "keep_models")


def _config(arguments: argparse.Namespace) -> TrainConfig:
    return TrainConfig(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(TrainConfig)})


def import_training(name: str) -> Callable[..., Votes]:
    """`train` or `predict`, which need torch.

    Raises:
        ConfigError: it is not installed.
    """
    import mithridate

    try:
        return getattr(mithridate, name)
    except ModuleNotFoundError as error:
        raise ConfigError(str(error)) from error


def _root_seed(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return bytes.fromhex(path.read_text(encoding="ascii").strip())
    except OSError as error:
        raise ArtifactError(f"Cannot read {path}: {error.strerror}. Check the path.") from error
    except ValueError:
        raise ArtifactError(f"{path} does not hold a root seed; expected 64 hexadecimal digits.") from None


# --- while it runs --------------------------------------------------------------------------------------------------


class _Clock:
    """Model-steps over time; what came from an earlier process does not count for the speed."""

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.first: int | None = None
        self.done = self.total = 0
        self.show: Callable[[], None] = lambda: None

    def __call__(self, done: int, total: int) -> None:
        """So many model-steps are done."""
        if self.first is None:
            self.begin, self.first = time.monotonic(), done
        self.done, self.total = done, total
        self.show()

    @property
    def seconds(self) -> float:
        """Since the first model-step."""
        return time.monotonic() - self.begin

    @property
    def speed(self) -> float | None:
        """Model-steps per second of this process, None where it did none."""
        steps = self.done - (self.first or 0)
        return steps / max(self.seconds, 1e-9) if steps > 0 else None


@contextlib.contextmanager
def _shown(clock: _Clock) -> Iterator[_Clock]:
    """A progress bar where a person watches, lines elsewhere."""
    if not sys.stderr.isatty():
        clock.show = _Lines(clock)
        with _logging(_say):
            yield clock
        return
    columns = (
        TextColumn("training"), BarColumn(), TextColumn("{task.percentage:.0f}%"), _Speed(clock), TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True, markup=False, highlight=False)
    with Progress(*columns, console=console, transient=True) as bar, _logging(console.print):
        task = bar.add_task("training", total=None)
        clock.show = lambda: bar.update(task, completed=clock.done, total=clock.total)
        yield clock


class _Speed(ProgressColumn):
    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self._clock = clock

    def render(self, task: Task) -> Text:
        """Model-steps per second."""
        speed = self._clock.speed
        return Text(f"{speed:,.0f} model-steps/s" if speed is not None else "")


class _Lines:
    """Now and then a line about how far it is."""

    def __init__(self, clock: _Clock) -> None:
        self._clock = clock
        self._last: tuple[float, int] | None = None

    def __call__(self) -> None:
        """Write one if it is time."""
        clock, now = self._clock, time.monotonic()
        if self._last is None:
            self._last = (now, clock.done)
        elapsed, share = now - self._last[0], (clock.done - self._last[1]) / max(clock.total, 1)
        if elapsed >= _LINE_SECONDS or (share >= _LINE_SHARE and elapsed >= 1.0):
            self._last = (now, clock.done)
            _say(progress_line(clock.done, clock.total, clock.speed))


def progress_line(done: int, total: int, speed: float | None) -> str:
    """How far it is.

    >>> progress_line(2000, 10000, 400.0)
    '2,000 of 10,000 model-steps (20%), 400 model-steps/s, 20 s left'
    """
    line = f"{done:,} of {total:,} model-steps ({done / total:.0%})"
    return line if not speed else f"{line}, {speed:,.0f} model-steps/s, {(total - done) / speed:,.0f} s left"


def _say(text: str) -> None:
    print(f"mithridate: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _logging(say: Callable[[str], None]) -> Iterator[None]:
    """What the library has to say while it trains."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(record.getMessage())

    logger, handler = logging.getLogger("mithridate"), Handler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


# --- what is printed ------------------------------------------------------------------------------------------------


def _summary(votes: Votes, run_dir: Path, clock: _Clock) -> dict[str, Any]:
    return {
        "votes": str(run_dir / "votes.npz"),
        "run_dir": str(run_dir),
        "run_id": votes.run_ids[0],
        "instances": votes.instances,
        "examples": votes.examples,
        "classes": votes.classes,
        "mechanism": votes.mechanism.to_dict(),
        "recipe": votes.recipe,
        "assumptions": list(votes.assumptions),
        "model_steps_per_s": clock.speed,
        "seconds": clock.seconds,
        "accuracy": accuracy(votes),
    }


def accuracy(votes: Votes) -> float | None:
    """Share of the examples whose majority label is the true one, None where it is not known."""
    return None if votes.labels is None else float(np.mean(votes.counts.argmax(axis=1) == votes.labels))


def _print(console: Console, votes: Votes, run_dir: Path, clock: _Clock) -> None:
    speed = "they were finished before" if clock.speed is None else f"{clock.speed:,.0f} model-steps/s"
    console.print(f"{votes.instances:,} instances voted on {votes.examples:,} inputs ({speed}).")
    right = accuracy(votes)
    if right is not None:
        console.print(f"The majority is right on {right:.2%} of them.")
    for assumption in votes.assumptions:
        console.print(f"Note: {assumption}")
    path = run_dir / "votes.npz"
    console.print(f"Written to {path}; certify it with: mithridate certify {shlex.quote(str(path))}", soft_wrap=True)

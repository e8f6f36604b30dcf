"""Training as the command line does it: everything chosen, shown and kept that the user left open."""

import contextlib
import dataclasses
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from mithridate._io.artifacts import write_npz
from mithridate._io.files import write_atomically
from mithridate.cli import _output
from mithridate.core.labels import commonest, single_label
from mithridate.core.votes import Votes
from mithridate.data import Examples
from mithridate.defences.base import kind_of_device
from mithridate.errors import ArtifactError, ConfigError
from mithridate.reporting import sentences as words
from mithridate.training.order import Order, Ray, RuntimeOptions

# Without a terminal, a line is written after so many seconds, or this share of the work.
_LINE_SECONDS = 10.0
_LINE_SHARE = 0.05
# Test images above this size are not kept for the report.
_PICTURE_BYTES = 1 << 26
# Models are kept unless they would take more than this, or the user says otherwise.
_KEPT_BYTES = 1 << 30


def carried_out(order: Order, runtime: RuntimeOptions) -> tuple[Votes, "Clock"]:
    """Train all or some shards, or resume, showing how far it is."""
    import_training(order)
    with shown(Clock()) as clock, _quiet_output(runtime.backend):
        votes = order.run(dataclasses.replace(runtime, progress=clock))
    if runtime.folder is not None:
        _keep_inputs(runtime.folder, order.test)
    return votes, clock


def prepared(order: Order, runtime: RuntimeOptions) -> Any:
    """Write down what is to be trained, in which shards, and train nothing; what `run.json` says."""
    import_training(order)
    with _quiet_output(runtime.backend):
        return order.defence.prepare(order, runtime)


def runtime_for(order: Order, run_dir: Path, options: Mapping[str, Any], shards: slice | None) -> RuntimeOptions:
    """How an order runs from the command line: what predictions need is kept unless it is much."""
    import_training(order)
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


def device_type(name: str, backend: Ray | None = None) -> str:
    """The kind of device that training will run on; of a cluster, as far as that is known here.

    Raises:
        ConfigError: there is no such device.
    """
    if isinstance(backend, Ray) and (name in ("cpu", "cuda") or backend.gpus_per_worker):
        return "cuda" if name == "auto" else name
    return kind_of_device(name)


def import_training(order: Order) -> None:
    """Make sure that what trains can be imported, where something is trained.

    Raises:
        ConfigError: it is not installed.
    """
    if not order.defence.needs_torch:
        return
    import mithridate

    try:
        _ = mithridate.train
    except ModuleNotFoundError as error:
        raise ConfigError(str(error)) from error


def accuracy(votes: Votes) -> float | None:
    """Share of the examples whose majority label is the true one, None where it is not known."""
    return None if votes.labels is None else float(np.mean(votes.counts.argmax(axis=1) == votes.labels))


def accuracy_summary(votes: Votes) -> dict[str, Any]:
    """Accuracy of the majority and what it is measured by, as JSON values."""
    return {
        "accuracy": accuracy(votes),
        "baseline": None if votes.labels is None else commonest(votes.labels).share,
        "single_label": single_label(votes.counts.argmax(axis=1)) is not None,
    }


def accuracy_sentences(votes: Votes) -> list[str]:
    """The same in words: that there is but one label first, where that is so."""
    correct = accuracy(votes)
    said = [] if correct is None else [f"The majority is correct on {_output.percent(correct)} of them."]
    opening = words.one_label_of(votes, votes.counts.argmax(axis=1))  # with the baseline
    return [*opening, *said] if opening else [*said, *words.baseline_sentence(votes)]


# --- while it runs --------------------------------------------------------------------------------------------------


class Clock:
    """Model-steps over time; what came from an earlier process does not count for the speed."""

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.first: int | None = None
        self.done = self.total = 0
        self.details = ""
        self.show: Callable[[], None] = lambda: None

    def __call__(self, done: int, total: int) -> None:
        """So many model-steps are done."""
        if self.first is None:
            self.begin, self.first = time.monotonic(), done
        self.done, self.total = done, total
        self.show()

    def detail(self, text: str) -> None:
        """What else there is to say, until the next time."""
        self.details = text

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
def shown(clock: Clock) -> Iterator[Clock]:
    """A progress bar where a person watches, lines elsewhere."""
    if not sys.stderr.isatty():
        clock.show = _Lines(clock)
        with _logging(_say):
            yield clock
        return
    columns = (
        TextColumn("training"), BarColumn(), TextColumn("{task.percentage:.0f}%"), _Speed(clock), TimeRemainingColumn(),
        _Details(clock),
    )  # fmt: skip
    console = Console(stderr=True, markup=False, highlight=False)
    with Progress(*columns, console=console, transient=True) as bar, _logging(console.print):
        task = bar.add_task("training", total=None)
        clock.show = lambda: bar.update(task, completed=clock.done, total=clock.total)
        yield clock


class _Speed(ProgressColumn):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def render(self, task: Task) -> Text:
        """Model-steps per second."""
        speed = self._clock.speed
        return Text(f"{speed:,.0f} model-steps/s" if speed is not None else "")


class _Details(_Speed):
    def render(self, task: Task) -> Text:
        """Shards and nodes of a cluster."""
        return Text(self._clock.details)


class _Lines:
    """Now and then a line about how far it is."""

    def __init__(self, clock: Clock) -> None:
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
            line = progress_line(clock.done, clock.total, clock.speed)
            _say(f"{line}, {clock.details}" if clock.details else line)


def progress_line(done: int, total: int, speed: float | None) -> str:
    """How far it is.

    >>> progress_line(2000, 10000, 400.0)
    '2,000 of 10,000 model-steps (20%), 400 model-steps/s, 20 s left'
    """
    line = f"{done:,} of {total:,} model-steps ({done / total:.0%})"
    return line if not speed else f"{line}, {speed:,.0f} model-steps/s, {(total - done) / speed:,.0f} s left"


@contextlib.contextmanager
def _quiet_output(backend: Ray | None) -> Iterator[None]:
    """Keep the output for results: Ray reports nodes that it lost there."""
    if isinstance(backend, Ray):
        with contextlib.redirect_stdout(sys.stderr):
            yield
    else:
        yield


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

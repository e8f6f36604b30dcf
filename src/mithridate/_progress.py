"""How far something is, for people who wait: a bar on a terminal, a line of text in a notebook, lines elsewhere."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

# Without a terminal, a line is written after so many seconds, or this share of the work.
_LINE_SECONDS = 10.0
_LINE_SHARE = 0.05
# What takes no longer is not worth a word.
_MOMENT_SECONDS = 2.0
# A line that takes the place of the last one may come more often.
_REWRITE_SECONDS = 0.5


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on the error stream where a person watches, a line now and then elsewhere."""
    if not sys.stderr.isatty():
        pace = _Pace()
        pace.start(0)

        def say(done: int, total: int) -> None:
            if pace.is_time(done, total):
                _say(f"{what}: {done:,} of {total:,} ({done / max(total, 1):.0%})")

        yield say
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class Clock:
    """Work over time; what came from an earlier process does not count for the speed.

    Args:
        unit: what is counted, in the plural.
    """

    def __init__(self, unit: str = "model-steps") -> None:
        self.unit = unit
        self.begin = time.monotonic()
        self.first: int | None = None
        self.done = self.total = 0
        self.details = ""
        self.show: Callable[[], None] = lambda: None

    def __call__(self, done: int, total: int) -> None:
        """So much is done."""
        if self.first is None:
            self.begin, self.first = time.monotonic(), done
        self.done, self.total = done, total
        self.show()

    @contextlib.contextmanager
    def stage(self, what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
        """Something that goes before the work that is counted, and is counted by itself."""
        before = self.unit, self.begin, self.first, self.done, self.total, self.details
        self.unit, self.first, self.details = unit, None, what
        try:
            yield self
        finally:
            self.unit, self.begin, self.first, self.done, self.total, self.details = before

    def detail(self, text: str) -> None:
        """What else there is to say, until the next time."""
        self.details = text

    @property
    def seconds(self) -> float:
        """Since the first of it."""
        return time.monotonic() - self.begin

    @property
    def speed(self) -> float | None:
        """Per second of this process, None where it did none."""
        steps = self.done - (self.first or 0)
        return steps / max(self.seconds, 1e-9) if steps > 0 else None

    @property
    def speed_in_words(self) -> str:
        """The same for people, nothing where it did none."""
        return "" if self.speed is None else f"{self.speed:,.0f} {self.unit}/s"

    def __str__(self) -> str:
        line = f"{self.done:,} of {self.total:,} {self.unit} ({self.done / max(self.total, 1):.0%})"
        if self.speed is not None:
            line += f", {self.speed_in_words}, {(self.total - self.done) / self.speed:,.0f} s left"
        return f"{line}, {self.details}" if self.details else line


@contextlib.contextmanager
def shown(what: str = "training", unit: str = "model-steps", words: tuple[str, ...] = ()) -> Iterator[Clock]:
    """A progress bar where a person watches, one line of text in a notebook, lines elsewhere.

    Args:
        what: goes on.
        unit: what is counted, in the plural.
        words: what to say first.
    """
    clock = Clock(unit)
    show = _in_notebook if _is_notebook() else _on_terminal if sys.stderr.isatty() else _in_lines
    with show(clock, what) as say, _logging(say):
        for sentence in words:
            say(sentence)
        token = _watched.set(clock)
        try:
            yield clock
        finally:
            _watched.reset(token)


# The clock that somebody watches, if anybody does.
_watched: contextvars.ContextVar[Clock | None] = contextvars.ContextVar("watched", default=None)


@contextlib.contextmanager
def stage(what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Count something that goes before the work that is shown, wherever that is shown; nowhere where nothing is.

    Args:
        what: goes on.
        unit: what is counted, in the plural.
    """
    clock = _watched.get()
    if clock is None:
        yield lambda done, total: None
        return
    with clock.stage(what, unit) as count:
        yield count


@contextlib.contextmanager
def awaited(what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Count something that may take long: it is shown as soon as it takes longer than a moment.

    Args:
        what: goes on.
        unit: what is counted, in the plural.
    """
    if _watched.get() is not None:
        with stage(what, unit) as said:
            yield said
        return
    begin, clock = time.monotonic(), None
    with contextlib.ExitStack() as stack:

        def count(done: int, total: int) -> None:
            nonlocal clock
            if clock is None and time.monotonic() - begin > _MOMENT_SECONDS:
                clock = stack.enter_context(shown(what, unit))
                clock.detail("" if sys.stderr.isatty() or _is_notebook() else what)  # of which lines do not speak
            if clock is not None:
                clock(done, total)

        yield count


@contextlib.contextmanager
def _in_lines(clock: Clock, what: str) -> Iterator[Callable[[str], None]]:
    clock.show = _Lines(clock)
    yield _say


@contextlib.contextmanager
def _on_terminal(clock: Clock, what: str) -> Iterator[Callable[[str], None]]:
    speed, details = _Said(lambda: clock.speed_in_words), _Said(lambda: clock.details)
    done = TextColumn("{task.percentage:.0f}%")
    columns = (TextColumn(what), BarColumn(), done, speed, TimeRemainingColumn(), details)
    console = Console(stderr=True, markup=False, highlight=False)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        clock.show = lambda: bar.update(task, completed=clock.done, total=clock.total)
        yield console.print


@contextlib.contextmanager
def _in_notebook(clock: Clock, what: str) -> Iterator[Callable[[str], None]]:
    """Below the cell, a line that takes the place of the last one; no widget has to be installed for that."""
    last = -_REWRITE_SECONDS

    def show() -> None:
        nonlocal last
        if time.monotonic() - last >= _REWRITE_SECONDS or clock.done == clock.total:
            last = time.monotonic()
            _write(f"\r{what}: {clock}".ljust(100))

    clock.show = show
    try:
        yield lambda text: _write(f"{text}\n")
    finally:
        if clock.total:
            _write("\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _is_notebook() -> bool:
    """Whether a kernel shows the output: IPython on a terminal is a terminal."""
    found: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(found).__mro__)


class _Said(ProgressColumn):
    def __init__(self, say: Callable[[], str]) -> None:
        super().__init__()
        self._say = say

    def render(self, task: Task) -> Text:
        """What there is to say now."""
        return Text(self._say())


class _Pace:
    """When another line is due: after some seconds, or some of the work; the first call starts it, unless `start`."""

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None

    def start(self, done: int) -> None:
        """So much is done now."""
        self._last = (time.monotonic(), done)

    def is_time(self, done: int, total: int) -> bool:
        """Whether a line is due, and will be written."""
        if self._last is None:
            self.start(done)
            return False
        elapsed, share = time.monotonic() - self._last[0], (done - self._last[1]) / max(total, 1)
        if elapsed < _LINE_SECONDS and (share < _LINE_SHARE or elapsed < 1.0):
            return False
        self.start(done)
        return True


class _Lines:
    """Now and then a line about how far it is."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._pace = clock, _Pace()

    def __call__(self) -> None:
        """Write one if it is time."""
        if self._pace.is_time(self._clock.done, self._clock.total):
            _say(str(self._clock))


def _say(text: str) -> None:
    sys.stderr.write(f"mithridate: {text}\n")
    sys.stderr.flush()


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

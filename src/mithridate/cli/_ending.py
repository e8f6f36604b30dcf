"""How the program ends: by itself, by Ctrl-C or by SIGTERM, at any moment, with one status and at most one line.

A signal ends the program in one of two ways. While a command runs, it raises KeyboardInterrupt, so that unfinished
files are removed, a progress bar is taken down and a cluster is let go. Where that could be lost or do harm (in an
import, before and after the command, while the program ends already), the line is written and the process ends there
and then: whatever is finished was written whole, and stays. Who presses Ctrl-C again waits for nothing, and whoever
swallows the exception only delays the end.

The interpreter is never taken down: threads of C++ libraries that still run would abort the process.

As little as possible is imported: until this is done, Ctrl-C is answered by Python itself, with a traceback.
"""

import _thread
import os
import signal
import sys
import time

from mithridate.cli import KEPT

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

BAD_INPUT, INTERNAL = 2, 70
# What the shell reports for a program that the signal ends.
_STATUSES = {signal.SIGINT: 128 + signal.SIGINT, signal.SIGTERM: 128 + signal.SIGTERM}
_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_OF_READER_GONE = 128 + 13  # of SIGPIPE, which not every system has
# Seconds that files, bars and clusters have to be put away.
GRACE = 30.0


class _State:
    """What is known about the end; of the process, as signals are."""

    kept_in: str | None = None
    may_unwind = False
    first: int | None = None  # the signal that came first
    is_speaking = has_spoken = False
    is_ending = False


def kept_in(folder: "os.PathLike[str] | None") -> None:
    """From now on what is finished is kept there; the line says so."""
    _State.kept_in = None if folder is None else os.fspath(folder)


def line(number: int = signal.SIGINT) -> str:
    """What is said after a signal."""
    if _State.kept_in is None:
        kept = KEPT
    else:
        kept = f"what is finished is kept in {_State.kept_in}. The same command goes on from there."
    return f"mithridate: {_WORDS[signal.Signals(number)]}; {kept}"


def was_asked_for() -> bool:
    """Whether a signal has come, so that whatever goes wrong now follows from that."""
    return _State.first is not None


def complain(text: str) -> None:
    """Write a line for the user, if anybody can still read it."""
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass


def show_details(error: Exception) -> None:
    """Where an error of ours happened, for those who asked for it with MITHRIDATE_DEBUG=1."""
    if os.environ.get("MITHRIDATE_DEBUG", "") not in ("", "0"):
        import traceback

        complain("".join(traceback.format_exception(error)).rstrip("\n"))


# --- signals --------------------------------------------------------------------------------------------------------


def take_over_signals() -> None:
    """Let SIGINT and SIGTERM end this process as described above; a signal that is ignored (nohup) stays ignored."""
    sys.unraisablehook = _on_unraisable
    for number in _STATUSES:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _on_signal)


def guarded(work: "Callable[[], int]") -> int:
    """The status of a command; while it runs, a signal raises KeyboardInterrupt."""
    try:
        _State.may_unwind = True
        status = work()
        _State.may_unwind = False
    except KeyboardInterrupt:
        _State.may_unwind = False
        _State.first = _State.first or signal.SIGINT
    else:
        if _State.first is None:
            return status
    number = signal.Signals(_State.first)
    _State.is_speaking = True
    complain(line(number))
    _State.has_spoken, _State.is_speaking = True, False
    return _STATUSES[number]


def start_anew() -> None:
    """Forget what came before: a program has one command, tests have many."""
    _State.kept_in = _State.first = None
    _State.has_spoken = False


def _on_signal(number: int, frame: "Any") -> None:
    if _State.is_speaking:
        return  # it ends in a moment, and the line is to be written once
    if _State.first is not None or not _State.may_unwind or _is_in_import(frame):
        _end_now(_State.first or number)
    _State.first = number
    try:
        # Not of threading, whose locks may be held by what was interrupted.
        _thread.start_new_thread(_end_later, (number,))
    except RuntimeError:  # there are too many threads
        pass
    raise KeyboardInterrupt


def _is_in_import(frame: "Any") -> bool:
    """Whether a module is being imported: many of them catch whatever is raised there, and C++ code may abort."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib."):
            return True
        frame = frame.f_back
    return False


def _on_unraisable(unraisable: "Any") -> None:
    """What was raised where nobody can catch it, such as in `__del__`: an interruption must not get lost there."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _end_now(_State.first or signal.SIGINT)
    elif _State.first is None:
        sys.__unraisablehook__(unraisable)


def _end_later(number: int) -> None:
    time.sleep(GRACE)
    _end_now(number)


def _end_now(number: int) -> "NoReturn":
    """Say so, unless it was said, and end without asking anybody."""
    status = _STATUSES[signal.Signals(number)]
    is_first, _State.is_ending = not _State.is_ending, True
    if is_first:
        try:
            sys.stdout.flush()
        except Exception:  # there is no reader, or what was interrupted is writing right now
            pass
    if not _State.has_spoken and not _State.is_speaking:
        _State.is_speaking = True
        # Over the progress bar, if there is one, which has hidden the cursor. Not through sys.stderr, which what was
        # interrupted may be writing to.
        is_screen = os.isatty(2) and os.environ.get("TERM", "dumb") != "dumb"
        take_down = b"\r\x1b[K\x1b[?25h" if is_screen else b""
        try:
            os.write(2, take_down + f"{line(number)}\n".encode(errors="replace"))
        except OSError:
            pass
    os._exit(status)


# --- the end --------------------------------------------------------------------------------------------------------


def leave(status: int) -> "NoReturn":
    """End the process with this status, after what was registered for its end."""
    import atexit

    lost = trouble_with_output()
    if lost is not None and status == 0:
        status = status_of_lost_output(lost)
    atexit._run_exitfuncs()  # prints what they raise, and raises nothing
    trouble_with_output()
    os._exit(status)


def trouble_with_output() -> OSError | None:
    """Why what was printed cannot be written, None if it was."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        return error
    except ValueError:  # closed by somebody
        pass
    return None


def status_of_lost_output(error: OSError) -> int:
    """Say why there is no output; nothing, where its reader went away (`| head`)."""
    if isinstance(error, BrokenPipeError):
        return _OF_READER_GONE
    complain(f"mithridate: Cannot write the output: {error.strerror}.")
    return BAD_INPUT

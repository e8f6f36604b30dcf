"""How the program ends: Ctrl-C at chosen moments, errors of our own, readers that go away. No test waits for a moment.

The signals come from the process itself, so that they come at the same place on any machine, however busy it is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cli import run
from training_doubles import TRAIN

from mithridate.cli import certifying, main

# Seconds after which something hangs.
pytestmark = pytest.mark.more
HANGS = 600
KEPT = "what is finished is kept, and the same command goes on from there."
INTERRUPTED = f"mithridate: interrupted; {KEPT}\n"
# In a job in the background, the signal would be ignored.
START = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
def interrupt(number=signal.SIGINT):
    os.kill(os.getpid(), number)
"""
GO = "\nfrom mithridate.cli import main\nsys.exit(main())"
PLAN = ["plan", *"--noise-multiplier 20 --sample-rate 0.01 --steps 4 --instances 200 --classes 3".split()]


def ended(code: str, *words: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """A program of its own that runs some code before it starts."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, "-c", START + code + GO, *map(str, words)], env=buffered,
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=HANGS, check=False,
        **{"stdout": subprocess.PIPE, **options},
    )  # fmt: skip


def within(body: str) -> str:
    """Code in place of a command, which imports nothing."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"import mithridate.cli\nfrom mithridate.cli import _ending\ndef command(words):\n{lines}" + (
        "mithridate.cli._run = command\n"
    )


# --- at any moment ---------------------------------------------------------------------------------------------------

ON_IMPORT = """
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            interrupt()
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    "name", ["mithridate.cli._ending", "argparse", "mithridate.cli._shared", "numpy", "scipy.special", "rich.progress"]
)
def test_while_modules_are_imported(name: str) -> None:
    outcome = ended(ON_IMPORT.format(name=name), *PLAN)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (130, "", INTERRUPTED)


def test_while_torch_is_imported(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", x=TRAIN[0], y=TRAIN[1])
    outcome = ended(ON_IMPORT.format(name="torch.nn"), "train", "--train", "train.npz", cwd=tmp_path)
    assert (outcome.returncode, outcome.stderr) == (130, INTERRUPTED)


TWICE = "import time\ntry:\n    interrupt()\nfinally:\n    interrupt()\n    time.sleep(3600)"
MOMENTS = {
    "in the command": "interrupt()\nreturn 0",
    "where everything is caught": "try:\n    interrupt()\nexcept BaseException:\n    pass\nreturn 0",
    "where nothing can be caught": "class Dying:\n    def __del__(self):\n        interrupt()\nDying()\nreturn 0",
    "at the end of the process": "import atexit\natexit.register(interrupt)\nreturn 0",
    "again, while things are put away": TWICE,
    "once, but the command is deaf": (
        "import threading\n_ending.GRACE = 0.01\ntry:\n    interrupt()\nexcept BaseException:\n"
        "    threading.Event().wait()"
    ),
    "while output is written": (
        "class Slow:\n    def write(self, text): ...\n    def flush(self):\n        interrupt()\n"
        "sys.stdout = Slow()\nreturn 0"
    ),
}


@pytest.mark.parametrize("moment", list(MOMENTS))
def test_one_status_and_one_line(moment: str) -> None:
    outcome = ended(within(MOMENTS[moment]))
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (130, "", INTERRUPTED)


def test_what_was_printed_before_is_not_lost() -> None:
    outcome = ended(within("print('so far')\ninterrupt()"))
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (130, "so far\n", INTERRUPTED)


def test_errors_that_follow_from_an_interruption_are_not_shown() -> None:
    """As where a library makes something else of it."""
    code = """
import mithridate.cli.certifying as command
def run(arguments):
    try:
        interrupt()
    except BaseException as error:
        raise ValueError("lost") from error
command.run_plan = run
"""
    outcome = ended(code, *PLAN)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (130, "", INTERRUPTED)


def test_the_line_says_where_things_are() -> None:
    outcome = ended(within("from pathlib import Path\n_ending.kept_in(Path('runs/mine'))\ninterrupt()"))
    kept = "what is finished is kept in runs/mine. The same command goes on from there."
    assert outcome.stderr == f"mithridate: interrupted; {kept}\n"


def test_being_terminated() -> None:
    outcome = ended(within("interrupt(signal.SIGTERM)"))
    assert (outcome.returncode, outcome.stderr) == (143, f"mithridate: terminated; {KEPT}\n")


def test_a_signal_that_is_to_be_ignored_is_ignored() -> None:
    """As in a job in the background, or under nohup."""
    code = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + within("interrupt()\nprint('done')\nreturn 0")
    outcome = ended(code)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "done\n", "")


def test_threads_that_go_on_do_not_keep_the_program() -> None:
    """Nor are they torn down with the interpreter: those of C++ would abort it."""
    body = "import threading\nthreading.Thread(target=threading.Event().wait).start()\nprint('done')\nreturn 0"
    outcome = ended(within(body))
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "done\n", "")


def test_a_progress_bar_leaves_the_cursor() -> None:
    if os.name != "posix":
        pytest.skip("needs a terminal")
    import pty

    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", START + within(TWICE) + GO], stderr=terminal, env={**os.environ, "TERM": "xterm"}
    )
    os.close(terminal)
    assert process.wait(HANGS) == 130
    assert os.read(screen, 4096).decode().startswith("\r\x1b[K\x1b[?25hmithridate: interrupted")
    os.close(screen)


def test_the_same_program_as_a_module() -> None:
    outcome = subprocess.run(
        [sys.executable, "-m", "mithridate", "--version"], capture_output=True, text=True, timeout=HANGS, check=True
    )
    assert outcome.stdout.startswith("mithridate ")


@pytest.mark.slow
def test_interruptions_at_random_moments_of_real_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As many as the environment variable INTERRUPTIONS says."""
    from interruptions import Sweep

    figures = Sweep(tmp_path, seed=0).interrupt(int(os.environ.get("INTERRUPTIONS", "300")))
    with capsys.disabled():
        print(f"\n{figures}")
    assert figures.wrong == []


# --- errors of our own -----------------------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(arguments: Any) -> int:
        raise error

    monkeypatch.setattr(certifying, "run_plan", fail)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("key\nof two lines"), r"an error of its own, KeyError: 'key\nof two lines' (test_ending.py, line "),
        (ValueError("x" * 10**6), "ValueError: xxx"),
        (ValueError("\x1b[31m\u202e"), "ValueError: "),
        (AssertionError(), "an error of its own, AssertionError (test_ending.py"),
        (OSError(9, "Bad file descriptor"), "OSError: [Errno 9] Bad file descriptor"),
        (RecursionError("maximum recursion depth exceeded"), "something is nested too deeply (test_ending.py, line "),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_mistake_of_ours_has_a_status_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, words: str
) -> None:
    failing(monkeypatch, error)
    monkeypatch.delenv("MITHRIDATE_DEBUG", raising=False)
    outcome = run(capsys, *PLAN)
    assert (outcome.code, outcome.out) == (70, "")
    assert outcome.err.startswith("mithridate: ")
    assert words in outcome.err
    assert "report it to the developers" in outcome.err
    assert "MITHRIDATE_DEBUG=1" in outcome.err
    assert outcome.err.count("\n") == 1
    assert len(outcome.err) < 1000
    assert not any(character in outcome.err for character in "\x1b\u202e")


def test_the_details_are_there_for_the_asking(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, KeyError("x"))
    monkeypatch.setenv("MITHRIDATE_DEBUG", "1")
    outcome = run(capsys, *PLAN)
    assert outcome.code == 70
    assert outcome.err.startswith("Traceback")
    assert "raise error" in outcome.err
    assert outcome.err.splitlines()[-1].startswith("mithridate: an error of its own, KeyError: 'x'")


def test_too_little_memory_is_nobodys_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, MemoryError("Unable to allocate 8.00 GiB"))
    outcome = run(capsys, *PLAN)
    assert outcome.code == 70
    assert outcome.err.startswith("mithridate: there is not enough memory (Unable to allocate 8.00 GiB). ")
    assert "report" not in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_program_that_fails_has_that_status_too() -> None:
    outcome = ended("import mithridate.cli.certifying as c\nc.run_plan = lambda arguments: 1 / 0\n", *PLAN)
    assert (outcome.returncode, outcome.stdout) == (70, "")
    assert outcome.stderr.startswith("mithridate: an error of its own, ZeroDivisionError: division by zero")
    assert outcome.stderr.count("\n") == 1


def test_a_library_does_not_choose_the_status() -> None:
    """For 1 says that a certificate does not hold."""
    outcome = ended(
        "import mithridate.cli.certifying as command\ncommand.run_plan = lambda arguments: sys.exit(1)\n", *PLAN
    )
    assert outcome.returncode == 70


def test_a_program_that_cannot_even_start() -> None:
    outcome = ended("sys.modules['numpy'] = None\n", *PLAN)
    assert (outcome.returncode, outcome.stdout) == (70, "")
    assert outcome.stderr.startswith("mithridate: cannot start (ModuleNotFoundError: import of numpy halted")
    assert outcome.stderr.count("\n") == 1


# --- readers that go away, and disks that are full --------------------------------------------------------------------


PRINTING = """
from mithridate.cli import _shared, certifying
certifying.run_plan = lambda arguments: {} or 0
"""


@pytest.mark.parametrize(
    "printing", ["_shared.console().print('x')", "_shared.print_json({'x': 'x' * 10**6})", "print('x', flush=True)"]
)
def test_a_reader_that_goes_away(printing: str) -> None:
    """Not status 1, which says that a certificate does not hold."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        outcome = ended(PRINTING.format(printing), *PLAN, stdout=writer)
    finally:
        os.close(writer)
    assert (outcome.returncode, outcome.stderr) == (141, "")


def test_a_reader_that_goes_away_does_not_make_a_certificate_hold() -> None:
    """What `verify` found out stays its status."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        outcome = ended(within("print('does not hold')\nreturn 1"), stdout=writer)
    finally:
        os.close(writer)
    assert (outcome.returncode, outcome.stderr) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_disk_that_is_full(lines: int) -> None:
    with open("/dev/full", "w") as full:
        outcome = ended(PRINTING.format(f"print('x' * {lines})"), *PLAN, stdout=full)
    assert outcome.returncode == 2
    assert outcome.stderr == "mithridate: Cannot write the output: No space left on device.\n"


def test_nobody_reads_anything() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        outcome = ended("os.dup2(1, 2)\n", "verify", "missing.json", stdout=writer)
    finally:
        os.close(writer)
    assert outcome.returncode == 2


# --- Python's own --------------------------------------------------------------------------------------------------


def test_signals_belong_to_whoever_calls_main(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the program takes them."""

    def handlers() -> tuple[Any, ...]:
        return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), sys.unraisablehook

    seen = []
    monkeypatch.setattr(certifying, "run_plan", lambda arguments: seen.append(handlers()) or 0)
    before = handlers()
    assert main(PLAN) == 0
    assert seen == [before]
    assert handlers() == before

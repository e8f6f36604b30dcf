"""The command line: parse, call, print; no logic of its own.

Imports stand in functions: the program must have the signals in hand before anything takes long.
"""

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Sequence

KEPT = "what is finished is kept, and the same command goes on from there."


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run one command.

    Args:
        argv: the words after the program's name. If they are left out, this is the program: it takes the words that it
            was started with and the signals, and ends the process.

    Returns:
        0 when all is well, 1 when a certificate or an audited claim does not hold or a gate is not passed, 2 on bad
        input, 3 when an audit has no power, 70 after an error of our own, 130 when interrupted, 141 when the reader of
        the output went away, 143 when terminated (of `serve` 0: it answered what was asked, and stopped).
    """
    if argv is not None:
        from mithridate.cli import _ending

        _ending.start_anew()
        return _ending.guarded(lambda: _run(list(argv)))
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # until there is a better one
        signal.signal(signal.SIGINT, _end_at_once)
    from mithridate.cli import _ending

    _ending.take_over_signals()
    _ending.leave(_ending.guarded(_run_program))


def _end_at_once(number: int, frame: object) -> None:
    import os

    os.write(2, f"mithridate: interrupted; {KEPT}\n".encode())
    os._exit(128 + number)


def _run(words: list[str]) -> int:
    from mithridate.cli._shared import run

    return run(words)


def _run_program() -> int:
    import sys

    from mithridate.cli import _ending

    try:
        return _run(sys.argv[1:])
    except SystemExit as ending:
        return ending.code if ending.code in (0, 2) else _ending.INTERNAL  # of argparse, and nobody else
    except Exception as error:  # not even the commands could be imported
        _ending.show_details(error)
        words = " ".join(f"{type(error).__name__}: {error}".split())
        _ending.complain(f"mithridate: cannot start ({words}). Install mithridate anew, with all that it needs.")
        return _ending.INTERNAL

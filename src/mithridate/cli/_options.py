"""Flags that several commands share, and the objects they stand for."""

import argparse

from mithridate._text import fraction
from mithridate.core.mechanism import Private, SampledGaussian, Subsampled, Threat
from mithridate.core.rule import Rule
from mithridate.defences.private import METHODS
from mithridate.defences.registry import defence, kind_of, names
from mithridate.errors import ConfigError


def add_mechanism(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Flags for what each instance ran."""
    group = parser.add_argument_group("mechanism (what each instance ran; our own votes files know it)")
    group.add_argument("--noise-multiplier", type=float, metavar="S", required=required, help="noise / clipping norm")
    group.add_argument("--sample-rate", type=float, metavar="Q", required=required, help="chance to enter a batch")
    group.add_argument("--steps", type=int, metavar="T", required=required, help="number of steps")
    group.add_argument(
        "--keep",
        type=fraction,
        metavar="M/N",
        help="each instance kept every example with this probability before training, e.g. 4000/50000 or 0.08",
    )


def mechanism_from(arguments: argparse.Namespace) -> Private | None:
    """The mechanism that the flags describe, or None where there are none.

    Raises:
        ConfigError: some of the flags are missing, or a value is outside its range.
    """
    flags = {
        "--noise-multiplier": arguments.noise_multiplier,
        "--sample-rate": arguments.sample_rate,
        "--steps": arguments.steps,
    }
    missing = [name for name, value in flags.items() if value is None]
    if len(missing) == len(flags) and arguments.keep is None:
        return None
    if missing:
        raise ConfigError(
            f"The mechanism is incomplete; add {', '.join(missing)} (none of them for a votes file that knows its own)."
        )
    inner = SampledGaussian(arguments.noise_multiplier, arguments.sample_rate, arguments.steps)
    return inner if arguments.keep is None else Subsampled(arguments.keep, inner)


def add_method(parser: argparse.ArgumentParser, *, private: bool = False) -> None:
    """Flags for how votes become radii; `private`: those of private learners alone."""
    group = parser.add_argument_group("method")
    known = tuple(METHODS) if private else names()
    usual = "fdp" if private else "that of the run or of the votes"
    group.add_argument(
        "--method", choices=known, metavar="NAME", help=f"the rule that certifies ({usual}): {', '.join(known)}"
    )
    if not private:
        group.add_argument(
            "--max-change", type=float, metavar="DISTANCE", help="feature-smoothing: how far one input may have moved"
        )
    group.add_argument("--delta", type=float, help="adp: delta of one example (default 1e-5)")


def method_from(arguments: argparse.Namespace) -> Rule | None:
    """The rule that the flags describe, or None where they name none.

    Raises:
        ConfigError: a flag belongs to another method.
    """
    given = {name: getattr(arguments, name, None) for name in ("max_change", "delta")}
    constants = {name: value for name, value in given.items() if value is not None}
    method = arguments.method
    if method is None and "max_change" in constants:
        method = "feature-smoothing"
    if method is None and constants:
        raise ConfigError("--delta belongs to --method adp; add it or leave it out.")
    if method is None:
        return None
    if "max_change" in kind_of(method).options() and "max_change" not in constants:
        raise ConfigError(f"--method {method} needs --max-change DISTANCE, which nobody but you can know.")
    return defence(method, **constants).rule()


def add_claim(parser: argparse.ArgumentParser) -> None:
    """Flags for what is claimed."""
    words = "; ".join(f"{threat.value}: {threat.in_words}" for threat in Threat)
    group = parser.add_argument_group("claim")
    group.add_argument(
        "--threat",
        choices=[threat.value for threat in Threat],
        help="what an attacker may have done, r times (default symmetric-difference; for votes of bagging and of "
        f"smoothing that of their authors). {words}",
    )
    group.add_argument(
        "--failure-prob",
        type=float,
        default=1e-3,
        metavar="P",
        help="probability with which a claim may fail, over training (default 0.001)",
    )

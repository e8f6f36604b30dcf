"""Flags that several commands share, and the objects they stand for."""

import argparse

from mithridate.accounting import ADP, FDP, RDP
from mithridate.accounting.rdp import GROUPS
from mithridate.core.mechanism import Private, SampledGaussian, Subsampled, Threat
from mithridate.core.rule import Rule
from mithridate.defences.partition_rules import RunOffRule
from mithridate.defences.smoothing_rules import FeatureNoiseRule
from mithridate.errors import ConfigError


def add_mechanism(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Flags for what each instance ran."""
    group = parser.add_argument_group("mechanism (what each instance ran; our own votes files know it)")
    group.add_argument("--noise-multiplier", type=float, metavar="S", required=required, help="noise / clipping norm")
    group.add_argument("--sample-rate", type=float, metavar="Q", required=required, help="chance to enter a batch")
    group.add_argument("--steps", type=int, metavar="T", required=required, help="number of steps")
    group.add_argument(
        "--keep",
        type=_fraction,
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


def add_method(parser: argparse.ArgumentParser, *, rivals: bool = False) -> None:
    """Flags for how votes become radii; `rivals`: votes of other defences, too."""
    group = parser.add_argument_group("method")
    others = ("run-off-election", "feature-smoothing") if rivals else ()
    words = "; votes of other defences have rules of their own, chosen by default" if rivals else ""
    group.add_argument(
        "--method",
        choices=("fdp", "rdp", "adp", *others),
        help=f"fdp (default for private learners) is the tightest; rdp and adp are the paper's{words}",
    )
    if rivals:
        group.add_argument(
            "--max-change", type=float, metavar="DISTANCE", help="feature-smoothing: how far one input may have moved"
        )
    group.add_argument(
        "--group",
        choices=GROUPS,
        help="rdp: rule for groups (default mixture); 'paper' is not valid for DP-SGD, for reproduction only",
    )
    group.add_argument("--complement", action="store_true", help="rdp: bound complements too, which is tighter")
    group.add_argument("--delta", type=float, help="adp: delta of one example (default 1e-5)")


def method_from(arguments: argparse.Namespace) -> Rule | None:
    """The method that the flags describe, or None where they name none.

    Raises:
        ConfigError: a flag belongs to another method.
    """
    if arguments.method != "rdp" and (arguments.group is not None or arguments.complement):
        raise ConfigError("--group and --complement belong to --method rdp; add it or leave them out.")
    if arguments.method != "adp" and arguments.delta is not None:
        raise ConfigError("--delta belongs to --method adp; add it or leave it out.")
    max_change = getattr(arguments, "max_change", None)
    if max_change is not None:
        if arguments.method not in (None, "feature-smoothing"):
            raise ConfigError("--max-change belongs to --method feature-smoothing; leave one of them out.")
        return FeatureNoiseRule(max_change)
    match arguments.method:
        case "run-off-election":
            return RunOffRule()
        case "feature-smoothing":
            raise ConfigError(
                "--method feature-smoothing needs --max-change, how far one input may have moved; add it."
            )
        case "rdp":
            return RDP(arguments.group or "mixture", arguments.complement)
        case "adp":
            return ADP() if arguments.delta is None else ADP(arguments.delta)
        case "fdp":
            return FDP()
        case _:
            return None


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


def _fraction(text: str) -> float:
    try:
        if "/" in text:
            part, whole = text.split("/")
            return float(part) / float(whole)
        return float(text)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"expected a fraction such as 4000/50000 or 0.08, got {text!r}") from None

"""`mithridate plan`: what could be certified, before anyone trains."""

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table

from mithridate.accounting import Method
from mithridate.certifying.planning import Plan, plan
from mithridate.cli import _options, _output
from mithridate.core.bounds import VOTE_BOUNDS
from mithridate.core.mechanism import Threat

_EXAMPLES = """example:
  mithridate plan --noise-multiplier 3 --sample-rate 0.001 --steps 1000 --instances 1000 --classes 10 --radius 250
"""


def add_to(commands: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "plan",
        help="say what could be certified, before anyone trains",
        description="The best radius of a mechanism, how it falls with the votes, and what a wanted radius would need.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _options.add_mechanism(parser, required=True)
    parser.add_argument("--instances", type=int, metavar="P", required=True, help="number of models that would vote")
    parser.add_argument("--classes", type=int, metavar="L", required=True, help="number of labels")
    parser.add_argument("--radius", type=int, metavar="R", help="a radius that is wanted: what would reach it?")
    _options.add_method(parser, private=True)
    _options.add_claim(parser)
    parser.add_argument("--bounds", choices=VOTE_BOUNDS, default="simultaneous", help="confidence bounds on the votes")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Plan and print."""
    mechanism, method = _options.mechanism_from(arguments), _options.method_from(arguments)
    assert mechanism is not None  # The parser requires its flags,
    assert method is None or isinstance(method, Method)  # and knows no others.
    result = plan(
        mechanism,
        instances=arguments.instances,
        classes=arguments.classes,
        radius=arguments.radius,
        failure_prob=arguments.failure_prob,
        threat=arguments.threat or Threat.SYMMETRIC_DIFFERENCE,
        method=method,
        bounds=arguments.bounds,
    )
    if arguments.json:
        _output.print_json(result.to_dict())
    else:
        _print(_output.console(), result)
    return 0


def _print(console: Console, result: Plan) -> None:
    table = Table(title=f"{result.instances:,} instances, {result.classes} classes")
    table.add_column("votes for the label", justify="right")
    table.add_column("radius", justify="right")
    table.add_column("")
    for share, radius in result.radius_by_top_share.items():
        shown = str(radius) if radius >= 0 else "none"
        table.add_row(f"{share:.0%}", shown, _output.bar(radius / result.max_radius if result.max_radius > 0 else 0))
    console.print(table)
    console.print(f"Threat: {result.threat.in_words}.")
    if result.radius_by_top_share[1.0] < 0:
        console.print("Not even unanimous votes are certified: use more instances.")
    if result.radius is not None:
        _print_needs(console, result, result.radius)


def _print_needs(console: Console, result: Plan, radius: int) -> None:
    console.print(f"Unanimous votes reach radius {radius} with any one of these changed, all else equal:")
    instances, steps = result.needed_instances, result.needed_steps
    console.print(
        f"  instances          {f'{instances:,} or more' if instances else 'no number up to 10 million is enough'}"
    )
    noise = result.needed_noise_multiplier
    console.print(f"  noise multiplier   {f'{noise:g} or more' if noise else 'no amount is enough'}")
    console.print(f"  steps              {f'{steps:,} or fewer' if steps else 'not even a single step'}")

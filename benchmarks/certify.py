"""Speed of certification on this machine, next to dp-accounting in the same run: `make bench`, or with `--json`.

Every timing of `certify` comes from a fresh process, so that "cold" means cold. Votes are the real ones of 1,000
LeNet-5 instances on MNIST, of experiments/aaai2023.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from mithridate import SampledGaussian, Votes
from mithridate.accounting.privacy_loss import compose
from mithridate.auditing.exact_curves import ExactTradeoff

VOTES = Path(__file__).parents[1] / "experiments" / "aaai2023" / "raw" / "mnist-lenet5-sigma3.npz"
MECHANISM = SampledGaussian(noise_multiplier=3.0, sample_rate=0.001, steps=1000)
_CHILD = """
import json, re, sys, time
import mithridate
method = {"fdp": mithridate.FDP(), "rdp": mithridate.RDP(), "rdp-paper": mithridate.RDP("paper"),
          "adp": mithridate.ADP()}[sys.argv[2]]
start = time.perf_counter()
votes = mithridate.read_votes(sys.argv[1])
read = time.perf_counter()
certificate = mithridate.certify(votes, method=method, on=sys.argv[3])
done = time.perf_counter()
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 2**20
print(json.dumps({"read_s": read - start, "certify_s": done - read, "peak_gib": peak,
                  "max_radius": int(certificate.radius.max())}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = {"machine": machine(), **certification(Path(folder)), "one_curve": one_curve()}
    print(json.dumps(results, indent=2) if arguments.json else table(results))


def machine() -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def certification(folder: Path) -> dict[str, Any]:
    votes = Votes.load(VOTES)
    small, large = folder / "small.npz", folder / "large.npz"
    votes.save(small)
    rows = np.random.default_rng(0).integers(0, votes.examples, 1_000_000)
    # Every row is shaken a little, so that a million points have many more distinct counts than ten thousand.
    Votes.from_counts(shaken(votes.counts[rows]), mechanism=MECHANISM).save(large)
    results: dict[str, Any] = {"votes": "MNIST, LeNet-5, real"}
    results["fdp_cold"] = run(small, "fdp", folder / "cache")
    results["fdp_cached"] = run(small, "fdp", folder / "cache")
    if votes.score_sums is not None:
        results["fdp_scores_cached"] = run(small, "fdp", folder / "cache", on="scores")
    results["fdp_million_cold"] = run(large, "fdp", folder / "cache-of-its-own")
    results["fdp_million_cached"] = run(large, "fdp", folder / "cache-of-its-own")
    for method in ("rdp", "rdp-paper", "adp"):
        results[f"{method}_cold"] = run(small, method, folder / "unused")
    return results


def shaken(counts: np.ndarray) -> np.ndarray:
    """Move up to 20 votes of each row from its first to its second label."""
    order = np.argsort(counts, axis=1)
    rows = np.arange(len(counts))
    moved = np.minimum(np.random.default_rng(1).integers(0, 21, len(counts)), counts[rows, order[:, -1]])
    result = counts.copy()
    result[rows, order[:, -1]] -= moved
    result[rows, order[:, -2]] += moved
    return result


def run(path: Path, method: str, cache: Path, *, on: str = "votes") -> dict[str, float]:
    environment = {**os.environ, "MITHRIDATE_CACHE": str(cache)}
    start = time.perf_counter()
    out = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path), method, on], env=environment, check=True, capture_output=True
    ).stdout
    return {**json.loads(out), "process_s": time.perf_counter() - start}


def one_curve(deleted: int = 150) -> dict[str, float]:
    """One composed curve, ours and dp-accounting's, and how far each lies above the exact hockey-stick divergence."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    m = MECHANISM
    ours = median_of(20, lambda: compose(m.noise_multiplier, m.sample_rate, m.steps, deleted, 0))
    counts = np.arange(deleted + 1)
    weights = np.exp(log_binomial(deleted, m.sample_rate))
    kept = weights > 1e-18

    def theirs_run() -> Any:
        # A grid of 1e-3 gives an error just above ours; the default of 1e-4 takes seven times as long.
        one_step = pld.from_mixture_gaussian_mechanism(
            m.noise_multiplier,
            counts[kept].tolist(),
            (weights[kept] / weights[kept].sum()).tolist(),
            value_discretization_interval=1e-3,
        )
        return one_step.self_compose(m.steps)

    theirs = median_of(3, theirs_run)
    losses = np.array([0.5, 1.0, 2.0, 3.0])
    x = np.geomspace(1e-6, 0.999, 4000)
    # dp-accounting answers with the larger of both directions, so the exact value does so too.
    exact_curves = [
        ExactTradeoff(m.noise_multiplier, m.sample_rate, m.steps, *s)(x) for s in ((deleted, 0), (0, deleted))
    ]
    exact = np.array([max(float((k - np.exp(e) * x).max()) for k in exact_curves) for e in losses])
    our_curves = [compose(m.noise_multiplier, m.sample_rate, m.steps, *s)(x) for s in ((deleted, 0), (0, deleted))]
    our_values = np.array([max(float((k - np.exp(e) * x).max()) for k in our_curves) for e in losses])
    their_values = np.array([float(theirs["result"].get_delta_for_epsilon(float(e))) for e in losses])
    return {
        "ours_s": ours["seconds"],
        "dp_accounting_s": theirs["seconds"],
        "ratio": theirs["seconds"] / ours["seconds"],
        "our_error": float((our_values - exact).max()),
        "dp_accounting_error": float((their_values - exact).max()),
    }


def log_binomial(trials: int, rate: float) -> np.ndarray:
    from scipy import stats

    return stats.binom.logpmf(np.arange(trials + 1), trials, rate)


def median_of(times: int, function: Any) -> dict[str, Any]:
    """The median time of several runs, and the last result."""
    seconds: list[float] = []
    result = None
    for _ in range(times):
        start = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - start)
    return {"seconds": float(np.median(seconds)), "result": result}


def table(results: dict[str, Any]) -> str:
    lines = [f"votes: {results['votes']}; {results['machine']}", ""]
    lines.append(f"{'':24}{'certify':>10}{'reading':>10}{'process':>10}{'memory':>12}{'max radius':>12}")
    for name, value in results.items():
        if isinstance(value, dict) and "certify_s" in value:
            lines.append(
                f"{name:24}{value['certify_s']:9.2f}s{value['read_s']:9.2f}s{value['process_s']:9.2f}s"
                f"{value['peak_gib']:8.2f} GiB{value['max_radius']:12}"
            )
    curve = results["one_curve"]
    lines += [
        "",
        f"one composed curve: {1e3 * curve['ours_s']:.1f} ms, error {curve['our_error']:.1e}; "
        f"dp-accounting {1e3 * curve['dp_accounting_s']:.0f} ms, error {curve['dp_accounting_error']:.1e}; "
        f"{curve['ratio']:.0f} times faster",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

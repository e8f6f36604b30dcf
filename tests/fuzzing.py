"""Mutated files for every reader and every command: none may end in a traceback, hang, or fill the memory.

    python tests/fuzzing.py --inputs 100000 [--seed 7] [--target votes]

Every input is a function of the seed and its number, so `--seed 7 --only 1234` repeats one alone. A process of its own:
what is measured is its memory. Tests run it by tests/test_faults.py.
"""

import argparse
import contextlib
import gzip
import io
import json
import logging
import os
import random
import resource
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mutations
import numpy as np
import test_cli_fuzz
import test_named
from mutations import Mutation
from rival_votes import RIVALS
from training_doubles import FakeEngine

from mithridate import ADP, FDP, RDP, Certificate, SampledGaussian, Subsampled, Votes, certify, read_votes
from mithridate.accounting.curve_store import CurveStore
from mithridate.accounting.fdp import CurveFamily
from mithridate.cli import main
from mithridate.cli.certifying import read_alike
from mithridate.data import Images, named, published_files, read
from mithridate.errors import MithridateError
from mithridate.projects import read_comparison, read_project
from mithridate.training import run as training
from mithridate.training.run_directory import Manifest, RunDirectory, read_models, read_seed

# Of the processor, so that a busy machine is not taken for a hang; the clock only ends what does nothing at all.
CPU_SECONDS = 10.0
CLOCK_SECONDS = 120
MEMORY_BYTES = 2 << 30
ADDRESSES = 8 << 30
LIMIT = 1 << 20
MECHANISM = SampledGaussian(4.0, 1.0, 4)
EXITS = (0, 1, 2)


@dataclass(frozen=True)
class Target:
    """A reader or a command.

    Attributes:
        name: in the result.
        data: a good file.
        path: where the mutated one goes.
        ways: how it may be mutated.
        call: what reads it.
        share: how many of all inputs it gets, relative to others.
    """

    name: str
    data: bytes
    path: Path
    ways: tuple[Mutation, ...]
    call: Callable[[Path], Any]
    share: float = 1.0


class Hang(BaseException):
    """It does not end; nobody catches that on the way."""


# --- what is read ---------------------------------------------------------------------------------------------------


def targets(world: Path) -> list[Target]:
    """Every reader, with a good file of its kind, and every command that takes a file."""
    os.chdir(world)
    return [*_tables(world), *_certificates(world), *_votes(world), *_runs(world), *_data(world), *_commands(world)]


def _tables(world: Path) -> Iterator[Target]:
    (world / "train.csv").write_text(test_cli_fuzz.TABLE)
    (world / "test.csv").write_text(test_cli_fuzz.TABLE)
    np.savez(world / "train.npz", x=test_cli_fuzz.TRAIN[0], y=test_cli_fuzz.TRAIN[1])
    np.savez(world / "test.npz", x=test_cli_fuzz.TEST[0], y=test_cli_fuzz.TEST[1])
    (world / "p.toml").write_text(test_cli_fuzz.PROJECT)
    (world / "c.toml").write_text(test_cli_fuzz.COMPARISON)
    text = (mutations.blindly, mutations.in_words)
    declared = read_project(world / "p.toml").declaration
    table = test_cli_fuzz.TABLE.encode()
    yield Target("csv", table, world / "m.csv", text, lambda path: read(path, declared, labels=True), 2)
    yield Target("tsv", table.replace(b",", b"\t"), world / "m.tsv", text, lambda path: read(path, declared))
    yield Target("project", test_cli_fuzz.PROJECT.encode(), world / "m.toml", text, lambda path: read_project(path), 2)
    comparison = test_cli_fuzz.COMPARISON.encode()
    yield Target("comparison", comparison, world / "n.toml", text, lambda path: read_comparison(path), 2)
    npz = (mutations.blindly, mutations.in_members, mutations.in_members)
    yield Target("arrays", (world / "train.npz").read_bytes(), world / "m.npz", npz, lambda p: read(p, labels=True), 4)


def _certificates(world: Path) -> Iterator[Target]:
    votes = Votes.from_counts([[200, 0, 0], [30, 160, 10]], mechanism=MECHANISM, labels=[0, 1])
    certify(votes, method=ADP()).save(world / "certificate.json")
    rehashed = (mutations.rehashed,)
    data = (world / "certificate.json").read_bytes()
    yield Target("certificate", data, world / "a.json", (mutations.blindly,), Certificate.load, 2)
    yield Target("certificate, rehashed", data, world / "b.json", rehashed, Certificate.load, 6)
    scores = [[150.0, 50.0], [60.0, 140.0]]
    scored = Votes.from_counts([[200, 0], [30, 170]], mechanism=MECHANISM, score_sums=scores, score_squares=scores)
    certify(scored, method=FDP(), on="scores").save(world / "scores.json")
    data = (world / "scores.json").read_bytes()
    yield Target("certificate on scores, rehashed", data, world / "c.json", rehashed, Certificate.load, 3)
    certify(replace(votes, mechanism=Subsampled(0.5, MECHANISM))).save(world / "subsampled.json")
    certify(replace(votes, mechanism=SampledGaussian(4.0, 0.1, 40)), method=RDP()).save(world / "rdp.json")
    for name, rival in RIVALS.items():
        rival.votes.save(world / f"{name}.npz")
        rival.certificate().save(world / f"{name}.json")
        data = (world / f"{name}.json").read_bytes()
        yield Target(f"{name}, rehashed", data, world / "c.json", rehashed, Certificate.load)


def _votes(world: Path) -> Iterator[Target]:
    votes = Votes.from_counts([[200, 0], [30, 170]], mechanism=MECHANISM, labels=[0, 1])
    replace(votes, run_ids=("one",), recipe={"config": {"instances": 200}}).save(world / "votes.npz")
    replace(votes, run_ids=("more",), recipe={"config": {"instances": 200}}).save(world / "more.npz")
    ways = (mutations.blindly, mutations.in_members, mutations.in_members)
    yield Target("votes", (world / "votes.npz").read_bytes(), world / "v.npz", ways, read_votes, 6)
    np.savez(world / "foreign.npz", counts=votes.counts, y=np.array([0, 1]))

    def read_foreign(path: Path) -> Votes:
        return read_votes(path, mechanism=MECHANISM, labels_key="y")

    yield Target("foreign votes", (world / "foreign.npz").read_bytes(), world / "f.npz", ways, read_foreign, 3)
    text = (mutations.blindly, mutations.in_words)
    counts = b"a,b,c\n200,0,0\n30,160,10\n"
    yield Target("counts", counts, world / "v.csv", text, lambda p: read_votes(p, mechanism=MECHANISM), 2)
    family = CurveFamily(MECHANISM)
    family.curve(1, 0)
    family.close()
    folder = Path(os.environ["MITHRIDATE_CACHE"])
    (cache,) = folder.glob("curves-*.npz")
    private = lambda path: (path.chmod(0o600), CurveStore(MECHANISM, folder))  # noqa: E731
    yield Target("curves", cache.read_bytes(), cache, ways, private, 2)


def _runs(world: Path) -> Iterator[Target]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(["train", "p.toml", "--run-dir", "run", "--instances", "8", "--keep-models"]) == 0
    run = world / "run"
    shutil.copytree(run, world / "pristine")
    manifest = Manifest.read(run / "run.json")
    group = manifest.ranges[0]
    shards, models = sorted((run / "shards").iterdir()), sorted((run / "models").iterdir())

    def resume(path: Path) -> None:
        RunDirectory(run, manifest, bytes(32))._find_done()

    ways = (mutations.blindly, mutations.in_members, mutations.in_members)
    yield Target("shard", shards[0].read_bytes(), shards[0], ways, resume, 4)
    json_ways = (mutations.blindly, mutations.in_json, mutations.in_json)
    data = (run / "run.json").read_bytes()
    yield Target("run.json", data, world / "run.json", json_ways, Manifest.read, 3)
    edited = run / "run.json"
    yield Target("run.json, used", data, edited, json_ways, lambda p: read_alike(run, world / "test.csv"), 2)
    tensors = (mutations.blindly, mutations.in_safetensors)
    yield Target("models", models[0].read_bytes(), models[0], tensors, lambda p: read_models(p, manifest, group), 2)
    yield Target("seed", (run / "seed").read_bytes(), world / "seed", (mutations.blindly,), read_seed)


def _data(world: Path) -> Iterator[Target]:
    blind = (mutations.blindly,)
    image, labels = test_named.GREY[1]
    idx = test_named.idx(image[:2, :5, :5].copy())
    yield Target("idx", idx, world / "i", blind, lambda p: published_files.read_idx(p, limit=LIMIT))
    packed = gzip.compress(idx, mtime=0)
    yield Target(
        "idx.gz",
        packed,
        world / "i.gz",
        (*blind, mutations.in_gzip),
        lambda p: published_files.read_idx(p, limit=LIMIT),
        2,
    )
    pixels, labels = test_named.COLOUR[1]
    records = test_named.records(pixels, labels)
    yield Target("cifar", records, world / "b.bin", blind, lambda p: published_files.read_cifar(p, limit=LIMIT))
    archive = test_named.archive({"test_batch.bin": records})

    def read_archive(path: Path) -> Any:
        return published_files.read_cifar_archive(path, ["test_batch.bin"], limit=LIMIT)

    yield Target("cifar.tar.gz", archive, world / "b.tar.gz", (*blind, mutations.in_gzip), read_archive, 1)
    yield from _pictures(world)
    yield from _parquet(world)


def _pictures(world: Path) -> Iterator[Target]:
    from PIL import Image

    picture = Image.fromarray(test_named.COLOUR[0][0][0].transpose(1, 2, 0))
    declared = Images(size=(8, 8))
    for form in ("png", "jpg", "gif", "bmp", "webp", "tiff"):
        picture.save(world / f"good.{form}")
        data = (world / f"good.{form}").read_bytes()
        yield Target(form, data, world / f"m.{form}", (mutations.blindly,), lambda p: read(p, declared), 0.5)


def _parquet(world: Path) -> Iterator[Target]:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"p": list(range(40)), "q": list("xy" * 20), "kind": list("ab" * 20)})
    parquet.write_table(table, world / "good.parquet")
    declared = read_project(world / "p.toml").declaration
    data = (world / "good.parquet").read_bytes()
    yield Target("parquet", data, world / "m.parquet", (mutations.blindly,), lambda p: read(p, declared, labels=True))


# --- commands -------------------------------------------------------------------------------------------------------


def _commands(world: Path) -> Iterator[Target]:
    npz = (mutations.blindly, mutations.in_members)
    text = (mutations.blindly, mutations.in_words)
    train, certify_run = ["train", "p.toml", "--run-dir", "run", "--instances", "8"], ["certify", "run"]
    kinds: list[tuple[str, str, tuple[Mutation, ...], list[list[str]], float]] = [
        ("p.toml", "x.toml", text, [["train", "HERE", *train[2:3], "out/run", *train[4:]]], 1),
        ("c.toml", "y.toml", text, [["compare", "HERE", "--out", "out/c"]], 0.05),
        ("train.csv", "x.csv", text, [["init", "HERE", "--label", "kind", "-o", "out/i.toml"]], 1),
        ("train.csv", "x.csv", text, [["predict", "run", "HERE"]], 1),
        ("train.npz", "x.npz", npz, [["init", "HERE", "-o", "out/i.toml"]], 1),
        ("train.npz", "x.npz", npz, [["train", "--train", "HERE", "--run-dir", "out/run", "--instances", "8"]], 1),
        ("certificate.json", "y.json", (mutations.rehashed,), [["report", "HERE", "-o", "out/r.md"]], 0.2),
        ("votes.npz", "y.npz", npz, [["merge", "HERE", "more.npz", "-o", "out/m.npz"]], 1),
        ("run/run.json", "run/run.json", (mutations.in_json,), [["predict", "run", "test.csv"], train], 1),
        ("run/run.json", "run/run.json", (mutations.in_json,), [["split", "run", "--into", "1", "-o", "out/s"]], 0.5),
        ("run/run.json", "run/run.json", (mutations.in_json,), [["report", "run", "-o", "out/r.md"], certify_run], 0.2),
        ("run/votes.npz", "run/votes.npz", npz, [["certify", "run", "--method", "adp"], train], 0.5),
        ("train.npz", "w.npz", npz, [["report", "certificate.json", "--inputs", "HERE", "-o", "out/r.md"]], 0.2),
    ]
    kinds += [
        (f"{name}.json", "z.json", (mutations.rehashed,), [["verify", "HERE"], ["verify", "HERE", "--json"]], 0.5)
        for name in ("certificate", "scores", "subsampled", "rdp", *RIVALS)
    ]
    kinds += [(f"{name}.npz", "z.npz", npz, [["certify", "HERE"]], 0.2) for name in ("votes", *RIVALS)]
    for good, name, ways, commands, share in kinds:
        data = (world / good).read_bytes()
        for words in commands:
            call = lambda path, words=words: _command(world, words, path)  # noqa: E731
            label = " ".join(["mithridate", *words[:2]])
            yield Target(f"{label} ({good})", data, world / name, ways, call, share)


def _command(world: Path, words: list[str], path: Path) -> None:
    """Run a command in this process; its exit status has to be a documented one, and its errors one sentence."""
    shutil.rmtree(world / "out", ignore_errors=True)
    (world / "out").mkdir()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status: Any = main([str(path) if word == "HERE" else word for word in words])
        except SystemExit as error:
            status = error.code
    if "run" in words:
        _restore_run(world)
    if status not in EXITS or "Traceback" in err.getvalue():
        raise AssertionError(f"status {status}: {err.getvalue()[-2000:]}")
    if "Unable to allocate" in out.getvalue() + err.getvalue():  # numpy, to somebody who went on without it
        raise AssertionError(f"it asked for too much memory: {out.getvalue()[-1000:]} {err.getvalue()[-1000:]}")


def _restore_run(world: Path) -> None:
    """The run as it was: a command goes on with what it finds, and writes that down."""
    shutil.rmtree(world / "run")
    shutil.copytree(world / "pristine", world / "run")


# --- running them ---------------------------------------------------------------------------------------------------


def attempt(target: Target, data: bytes) -> str | None:
    """Let a target read some bytes; what went wrong, or None."""
    target.path.unlink(missing_ok=True)
    target.path.write_bytes(data)
    begin = time.process_time()
    signal.alarm(CLOCK_SECONDS)
    try:
        target.call(target.path)
    except MithridateError as error:
        if not str(error).strip():
            return "an error without a message"
    except Hang:
        return f"it did not end within {CLOCK_SECONDS} s"
    except Exception:
        return traceback.format_exc(limit=-6)
    finally:
        signal.alarm(0)
    spent = time.process_time() - begin
    return f"it took {spent:.1f} s of the processor" if spent > CPU_SECONDS else None


def _mutated(target: Target, rng: random.Random) -> bytes:
    return rng.choice(target.ways)(target.data, rng)


@contextlib.contextmanager
def prepared() -> Iterator[Path]:
    """A folder with good files, a cache of its own, an engine that costs nothing, and nobody to download from."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        os.environ["MITHRIDATE_CACHE"] = f"{folder}/cache"
        os.environ.pop("MITHRIDATE_DATA", None)
        training.Engine = FakeEngine  # type: ignore[misc,assignment]
        for name, published in list(named.PUBLISHED.items()):
            named.PUBLISHED[name] = replace(published, hosts=("http://127.0.0.1:9/",))
        before = os.getcwd()
        world = Path(folder) / "world"
        world.mkdir()
        try:
            yield world
        finally:
            os.chdir(before)


def _peak_bytes() -> int:
    """Of this program alone: on Linux, the usage of a process counts the memory of whoever started it, too."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(inputs: int, seed: int, names: list[str] | None = None, only: int | None = None) -> dict[str, Any]:
    """So many inputs, and what came of them."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")

    def interrupt(*_: Any) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, interrupt)
    # Whatever asks for far more than it may have is told so, instead of taking it from everybody else.
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    failures: list[dict[str, Any]] = []
    seconds: dict[str, float] = {}
    counts: dict[str, int] = {}
    slowest = (0.0, "")
    with prepared() as world:
        every = [target for target in targets(world) if not names or any(name in target.name for name in names)]
        for number in range(inputs) if only is None else [only]:
            rng = random.Random(f"{seed}-{number}")
            (target,) = rng.choices(every, [target.share for target in every])
            data = _mutated(target, rng)
            begin = time.process_time()
            problem = attempt(target, data)
            spent = time.process_time() - begin
            slowest = max(slowest, (spent, f"{target.name}, input {number}"))
            seconds[target.name] = seconds.get(target.name, 0.0) + spent
            counts[target.name] = counts.get(target.name, 0) + 1
            target.path.write_bytes(target.data)  # others use it, too
            if problem is None and _peak_bytes() > MEMORY_BYTES:
                problem = f"{_peak_bytes():,} bytes of memory"
            if problem is not None:
                failures.append({"input": number, "target": target.name, "problem": problem})
                if len(failures) >= 20 or _peak_bytes() > MEMORY_BYTES:  # which does not shrink again
                    break
    return {
        "seed": seed,
        "inputs": sum(counts.values()),
        "failures": failures,
        "cpu_seconds": round(time.process_time(), 1),
        "slowest": slowest,
        "peak_bytes": _peak_bytes(),
        "targets": {name: f"{counts[name]} x {1000 * seconds[name] / counts[name]:.2f} ms" for name in sorted(counts)},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    parser.add_argument("--target", action="append")
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    found = run(options.inputs, options.seed, options.target, options.only)
    print(json.dumps(found, indent=1))
    sys.exit(bool(found["failures"]) or found["peak_bytes"] > MEMORY_BYTES)

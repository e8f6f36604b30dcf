"""Tasks of a Ray cluster: each is carried out once, whatever workers and nodes are lost on the way."""

from __future__ import annotations

import contextlib
import logging
import platform
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
from ray import exceptions

from mithridate import errors
from mithridate._version import VERSION
from mithridate.errors import ClusterError, ConfigError, MithridateError
from mithridate.training.order import Ray
from mithridate.training.ray_connection import KEPT, asking, connected, first_line

_log = logging.getLogger(__name__)

IntArray = npt.NDArray[np.int64]

# Seconds after which the cluster is looked at again: it may have grown.
_LOOK_AGAIN = 2.0
# Nodes that may be lost under one piece; on machines that others may take away, that is nobody's mistake.
_MOST_NODES_LOST = 100
# Pieces that fail again and again before the others are given up: by then it is not the pieces.
_MOST_BROKEN = 3


@dataclass(frozen=True)
class Failed:
    """Why there is no result.

    Attributes:
        why: `memory`: it did not suffice for so much at a time; `final`: trying again cannot help; `error`: it might;
            `killed`: the node ran out of memory; `crashed`: the process died; `lost`: the node, or the result with it.
        words: what was wrong.
        kind: the class of an error of mithridate.
        trace: where it happened.
    """

    why: str
    words: str
    kind: str = "ClusterError"
    trace: str = ""


def common_versions() -> dict[str, str]:
    """What must be the same on all sides: what is sent are objects of Python, made and read by these."""
    return {"mithridate": VERSION, "Python": ".".join(platform.python_version_tuple()[:2]), "Ray": ray.__version__}


def check_versions(wanted: Mapping[str, str]) -> None:
    """Refuse to work for a program of other versions."""
    for name, here in common_versions().items():
        if here != wanted[name]:
            raise ConfigError(
                f"The node {platform.node()} has {name} {here}, and this program {wanted[name]}; install the same "
                "version everywhere."
            )


def failure(error: Exception, *, lacks_memory: bool) -> Failed:
    """Why an error of a task left no result."""
    if lacks_memory and not isinstance(error, MithridateError):
        return Failed("memory", str(error))
    words = f"{type(error).__name__}: {error}"
    if isinstance(error, MithridateError):
        return Failed("final", str(error), type(error).__name__)
    return Failed("error", words, trace=traceback.format_exc())


@dataclass
class Sight:
    """How large the cluster is, looked at now and then."""

    needs: Mapping[str, float]
    nodes: int = 0
    slots: int = 0
    _seen: float | None = None

    def refresh(self) -> None:
        """Look again if it is time."""
        now = time.monotonic()
        if self._seen is not None and now - self._seen < _LOOK_AGAIN:
            return
        self._seen = now
        with asking():
            there, nodes = ray.cluster_resources(), ray.nodes()
        self.slots = min(int(there.get(name, 0.0) / need + 1e-6) for name, need in self.needs.items())
        self.nodes = sum(bool(node["Alive"]) for node in nodes)


def explain_lack(sight: Sight, backend: Ray) -> None:
    """Say that no node has what a worker needs: a task would wait for one without a word.

    Raises:
        ConfigError: the cluster is one of our own, which no node will join.
    """
    needs = " and ".join(f"{number:g} {name}" for name, number in sight.needs.items())
    if backend.address is None:
        raise ConfigError(f"A worker needs {needs}, which this machine lacks; use device='cpu' or fewer of them.")
    _log.warning("No node of the cluster has %s for a worker; waiting for one that joins.", needs)


def done(tasks: list[Any]) -> list[Any]:
    """Tasks that have ended, or none after a while."""
    with asking():
        return ray.wait(tasks, timeout=_LOOK_AGAIN)[0]


def result(task: Any) -> Any:
    """What a task gave, or why it gave nothing."""
    try:
        with asking():
            return ray.get(task)
    except exceptions.OutOfMemoryError as error:
        return Failed("killed", first_line(error))
    except (exceptions.NodeDiedError, exceptions.ObjectLostError, exceptions.LocalRayletDiedError) as error:
        return Failed("lost", first_line(error))
    except exceptions.WorkerCrashedError as error:
        return Failed("crashed", first_line(error))
    except exceptions.RayTaskError as error:
        # Not even the function could be read there.
        return Failed("error", f"{first_line(error.cause or error)} (is mithridate installed on every node?)")
    except exceptions.RayError as error:
        return Failed("error", f"{type(error).__name__}: {first_line(error)}")


def as_error(failed: Failed, what: str) -> MithridateError:
    """What a failure is for the caller."""
    if failed.why == "final":
        return getattr(errors, failed.kind, ClusterError)(failed.words)
    if failed.trace:
        _log.error("%s", failed.trace.rstrip())
    return ClusterError(f"{what}: {failed.words.rstrip('.')}. {KEPT}")


@dataclass
class Trouble:
    """What failed, how often, and what follows from it.

    Attributes:
        retries: how often a piece is tried again.
        what: the pieces are made of.
        again: what becomes of them then.
        too_many: the size of a piece that was too large for memory.
        cause: why not all can be done.
    """

    retries: int
    what: str = "instances"
    again: str = "trained again, with the same draws"
    too_many: int | None = None
    cause: MithridateError | None = None
    _failures: Counter[tuple[range, str]] = field(default_factory=Counter)
    _broken: int = 0
    _is_final: bool = False

    @property
    def stops(self) -> bool:
        """Whether nothing more is to be submitted. A single piece that fails does not keep the others from it."""
        return self.too_many is not None or self._is_final or self._broken >= _MOST_BROKEN

    def is_tried_again(self, piece: range, failed: Failed) -> bool:
        """Take note of a failure; whether the piece is to be tried again as it is."""
        name = f"The {self.what} {piece.start} to {piece.stop - 1}"
        if failed.why == "memory":
            self.too_many = min(len(piece), self.too_many or len(piece))
            return False
        kind = "lost" if failed.why == "lost" else "failed"
        self._failures[piece, kind] += 1
        number = self._failures[piece, kind]
        allowed = _MOST_NODES_LOST if kind == "lost" else self.retries
        if failed.why != "final" and number <= allowed:
            _log.warning("%s are %s: %s", name, self.again, failed.words)
            return True
        if failed.why == "killed" and len(piece) > 1:
            self.too_many = min(len(piece), self.too_many or len(piece))
        else:
            self._give_up(as_error(failed, f"{name} failed {number} times, the last time with"), failed.why == "final")
        return False

    def _give_up(self, cause: MithridateError, is_final: bool) -> None:
        """Leave a piece out; the run ends with the first cause."""
        self.cause = self.cause or cause
        self._broken += 1
        self._is_final |= is_final
        if not self.stops:
            _log.warning("The run will end with an error, once the other pieces are done. %s", cause)


# --- until all are done -----------------------------------------------------------------------------------------------


def carry_out(
    pieces: Iterable[range],
    submit: Callable[[range], Any],
    trouble: Trouble,
    window: Callable[[], int],
) -> Generator[tuple[range, Any], None, None]:
    """Submit a task for every piece, and hand out what they gave, in any order.

    It ends when all that can be done is done, or, if something is in the way, when those under way are. A piece is in
    one task at a time.

    Args:
        pieces: ranges of something.
        submit: makes a task of a piece.
        trouble: takes note of failures, and says which are tried again.
        window: how many tasks may be under way.

    Raises:
        MithridateError: a piece failed for good.
    """
    waiting, under_way = deque(pieces), dict[Any, range]()
    try:
        while under_way or (waiting and not trouble.stops):
            while waiting and not trouble.stops and len(under_way) < window():
                piece = waiting.popleft()
                with asking():
                    under_way[submit(piece)] = piece
            for task in done(list(under_way)):
                piece, found = under_way.pop(task), result(task)
                if not isinstance(found, Failed):
                    yield piece, found
                elif trouble.is_tried_again(piece, found):
                    waiting.appendleft(piece)
    finally:
        for task in under_way:
            with contextlib.suppress(Exception), asking():
                ray.cancel(task, force=True)
    if trouble.cause is not None:
        raise trouble.cause


# --- examples that are compared ---------------------------------------------------------------------------------------

# Examples that a worker has at a time.
_SHARD_EXAMPLES = 1 << 17


@contextlib.contextmanager
def compared_by(backend: Ray) -> Iterator[Comparers]:
    """Workers of a cluster that compare inputs with shards of the examples.

    Raises:
        ConfigError: there is no such cluster.
    """
    with connected(backend):
        yield Comparers(backend)


class Comparers:
    """Workers that are sent some of the examples each, and say what became of them.

    Guarantee: every example is in exactly one result, whatever workers and nodes are lost, and with it all of its unit.
    """

    def __init__(self, backend: Ray) -> None:
        self._backend = backend
        cpus = backend.cpus_per_worker or 1
        self._sight = Sight({"CPU": cpus})
        # A task whose worker dies fails, and is submitted again here, where its failures are counted.
        self._task = ray.remote(num_cpus=cpus, max_retries=0)(_compare)
        self._sight.refresh()
        if self._sight.slots == 0:
            explain_lack(self._sight, backend)

    def each(
        self, work: Callable[..., Any], common: Sequence[Any], arrays: Sequence[Any], starts: IntArray | None = None
    ) -> Iterator[tuple[int, Any]]:
        """What `work(*common, *shards)` gives for every shard of the examples, with their number, in any order.

        Args:
            work: a function of a module that all workers have.
            common: what is the same for all shards; it is sent to a node once.
            arrays: an entry for every example each; the shards are slices of them.
            starts: where the examples of every unit start, and at last their number: shards then are whole units, whose
                number it is, and `work` gets their own starts behind the slices. None: an example is a unit.

        Raises:
            ClusterError: a shard failed again and again.
        """
        with asking():
            place = [ray.put(tuple(common))]

        def submit(shard: range) -> Any:
            return self._task.remote(work, place, _slices(arrays, starts, shard), common_versions())

        missing = _shards(arrays[0].shape[0], starts)
        while missing:
            trouble = Trouble(self._backend.retries, "examples" if starts is None else "units", "compared again")
            with contextlib.closing(carry_out(tuple(missing), submit, trouble, self._window)) as results:
                for shard, found in results:
                    missing.remove(shard)
                    yield len(shard), found
            if trouble.too_many is not None:
                missing = _halved(missing, trouble.too_many)

    def _window(self) -> int:
        self._sight.refresh()
        return min(self._sight.slots + 1, self._backend.workers or 2**31)


def _shards(examples: int, starts: IntArray | None) -> list[range]:
    """Examples, or units, so many at a time that they have about `_SHARD_EXAMPLES` examples."""
    if starts is None:
        return [range(at, min(at + _SHARD_EXAMPLES, examples)) for at in range(0, examples, _SHARD_EXAMPLES)]
    firsts = np.flatnonzero(np.diff(starts[:-1] // _SHARD_EXAMPLES, prepend=-1)).tolist()
    return [range(first, end) for first, end in pairwise([*firsts, len(starts) - 1])]


def _slices(arrays: Sequence[Any], starts: IntArray | None, shard: range) -> tuple[Any, ...]:
    """The examples of a shard, and where those of its units start."""
    if starts is None:
        return tuple(array[shard.start : shard.stop] for array in arrays)
    of_shard = starts[shard.start : shard.stop + 1]
    part = slice(int(of_shard[0]), int(of_shard[-1]))
    return (*(array[part] for array in arrays), of_shard - of_shard[0])


def _compare(work: Callable[..., Any], place: Sequence[Any], shards: Sequence[Any], versions: Mapping[str, str]) -> Any:
    """A task: what becomes of a shard."""
    try:
        check_versions(versions)
        return work(*ray.get(place[0]), *shards)
    except Exception as error:
        return failure(error, lacks_memory=isinstance(error, MemoryError))


def _halved(shards: Sequence[range], size: int) -> list[range]:
    """Shards of at most half this size.

    Raises:
        ClusterError: they are single examples, or units.
    """
    if size == 1:
        raise ClusterError(
            "A worker has too little memory for the inputs and a single example, or unit. Use larger workers."
        )
    half = size // 2
    return [each[at : at + half] for each in shards for at in range(0, len(each), half)]

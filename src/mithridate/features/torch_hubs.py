"""Networks of torchvision and of Hugging Face's transformers, by their names: local weights, or the hub's."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate.errors import ConfigError
from mithridate.features._conditioning import Conditioning, main_directions
from mithridate.features._pictures import as_pictures, check_denoise, probe_pictures, torch_machine
from mithridate.features._texts import PROBE_TEXTS, as_texts
from mithridate.features._twice import RowMachine
from mithridate.features.onnx_files import IMAGENET_DEVIATION, IMAGENET_MEAN
from mithridate.features.pretrained import Pretrained, cores, needed, on_torch, version_of

if TYPE_CHECKING:
    from torch import Tensor, nn

# Files of a folder of transformers that an encoder consists of.
_FETCHED = ("*.json", "*.txt", "*.model", "*.safetensors", "pytorch_model*.bin")
_ADAPTER = "adapter_config.json"


@dataclass(frozen=True, kw_only=True)
class _OnTorch(Pretrained):
    """What networks of torch have in common."""

    extra: ClassVar[str] = "vision"

    source: str

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not self.source:
            raise ConfigError(f"Expected a name behind {self.name}:, got {self.source!r}.")
        super().__post_init__()

    @property
    def title(self) -> str:
        """As it was asked for."""
        return f"{self.name}:{self.source}"

    def versions(self) -> dict[str, str]:
        """Of torch and of the library that has the network."""
        return {name: version_of(name) for name in ("torch", "tokenizers", self.name)}

    def _device(self) -> str:
        needed("torch", title=self.title, extra=self.extra)
        return on_torch(self.device, self.made_with)


# --- torchvision ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Torchvision(_OnTorch):
    """Photographs through a classifier of torchvision (`torchvision:resnet50`), up to its last layer.

    Weights are the default ones of the library: those in the folder of torch.hub, else downloaded. Directions are the
    first right singular vectors of the last layer, its rows centred; there is no centre.

    Guarantee and Assumes: those of `Pretrained`.

    Args:
        source: what `torchvision.models.get_model` calls it.
        file: other weights of it, a file that `torch.save` wrote; only tensors are read.
        size: pixels of either side.
        mirrored: whether the mirror image counts as much as the image.
        denoise: as for `EfficientNetLite2`.
    """

    name: ClassVar[str] = "torchvision"
    usual_columns: ClassVar[int | None] = 256
    of_embeddings: ClassVar[tuple[str, ...]] = ("source", "size", "mirrored", "denoise")

    file: str | None = None
    size: int = 224
    mirrored: bool = True
    denoise: float | None = None
    trained_on: str | None = "what torchvision says of its default weights, for most networks ImageNet-1k"
    licence: str | None = "BSD-3-Clause, as torchvision states"

    def __post_init__(self) -> None:
        _validate.positive_integer(size=self.size)
        check_denoise(self.denoise)
        super().__post_init__()

    def weight_files(self) -> tuple[Path, ...]:
        """The file of the weights, downloaded where it must be."""
        if self.file is not None:
            if not Path(self.file).is_file():
                raise ConfigError(f"There is no file {self.file} with weights of {self.title}; check the path.")
            return (Path(self.file),)
        models = self._models()
        import torch

        address = models.get_model_weights(self.source).DEFAULT.url
        path = Path(torch.hub.get_dir()) / "checkpoints" / address.rpartition("/")[2]
        if not path.is_file():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                torch.hub.download_url_to_file(address, str(path), progress=False)
            except OSError as error:
                raise ConfigError(
                    f"The weights of {self.title} are not in {path.parent} and cannot be fetched ({error}); copy "
                    f"{path.name} there, or give its path as file."
                ) from error
        return (path,)

    def _models(self) -> Any:
        try:
            library = import_module("torchvision")
        except ImportError as error:
            raise ConfigError(
                f"{self.title} needs the torchvision that fits your torch: pip install torchvision"
            ) from error
        if self.source not in library.models.list_models(module=library.models):
            raise ConfigError(
                f"torchvision has no classifier {self.source!r}; torchvision.models.list_models() lists them."
            )
        return library.models

    @property
    def usual_batch(self) -> int:
        """One on a CPU, where rows are then alone."""
        return 128 if self.device == "cuda" else 1

    def inputs(self, x: Any) -> tuple[npt.NDArray[Any], Sequence[Any]]:
        """8-bit images."""
        return as_pictures(x, self.title)

    def probes(self) -> npt.NDArray[np.uint8]:
        """Two images."""
        return probe_pictures()

    def _network(self) -> tuple[nn.Module, npt.NDArray[np.float64]]:
        """The network without its last layer, and the weights of that."""
        import torch

        network = self._models().get_model(self.source, weights=None)
        weights = torch.load(io.BytesIO(self.weight_files()[0].read_bytes()), map_location="cpu", weights_only=True)
        try:
            network.load_state_dict(weights)
        except RuntimeError as error:
            raise ConfigError(f"{self.weight_files()[0]} does not hold the weights of {self.title}: {error}") from error
        linear = [name for name, part in network.named_modules() if isinstance(part, torch.nn.Linear)]
        if not linear:
            raise ConfigError(f"{self.title} does not end with a linear layer; use another network.")
        owner, _, name = linear[-1].rpartition(".")
        parent = network.get_submodule(owner)
        last = getattr(parent, name).weight.detach().double().numpy()
        setattr(parent, name, torch.nn.Identity())
        return network.eval(), last

    def load(self) -> RowMachine:
        """The network on its device."""
        network, _ = self._network()
        return _picture_machine(network, lambda given: given.flatten(1), self, (IMAGENET_MEAN, IMAGENET_DEVIATION))

    def own_conditioning(self, columns: int | None) -> Conditioning:
        """Directions by the last layer."""
        _, last = self._network()
        most = min(last.shape[0] - 1, last.shape[1])
        directions = main_directions(last - last.mean(axis=0), min(columns or most, most))
        return Conditioning(np.zeros(last.shape[1]), directions, self.root)


def _picture_machine(
    network: nn.Module, pooled: Callable[[Any], Tensor], encoder: Any, scale: tuple[Sequence[float], Sequence[float]]
) -> RowMachine:
    """A module on pictures; `scale` is that of pixels from 0 to 1."""

    class Parameters:
        def to(self, change: Callable[[Tensor], Tensor]) -> None:
            for part in (*network.parameters(), *network.buffers()):
                if part.is_floating_point():
                    part.data = change(part.data)
                else:
                    part.data = part.data.to(encoder.device)

    mean, deviation = ([255.0 * value for value in each] for each in scale)
    return torch_machine(
        lambda pictures: pooled(network(pictures)).float(),
        [Parameters()],
        device=encoder.device,
        batch=encoder.together,
        size=encoder.size,
        scale=(mean, deviation),
        mirrored=encoder.mirrored,
        denoise=encoder.denoise or 0.0,
    )


# --- transformers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Transformers(_OnTorch):
    """Texts or photographs through a network of transformers (`transformers:FOLDER`, or a name of the hub).

    Texts are cut after `tokens` tokens, and their embedding is the mean over the tokens. Photographs are stretched to
    the size that the network was made for; their embedding is what the network pools, else that of its first token.
    Code that comes with a network is never run.

    Guarantee and Assumes: those of `Pretrained`.

    Args:
        source: a folder with `config.json` and `model.safetensors`, or a name of the hub.
        tokens: of a text, at most.
        mirrored: for photographs: whether the mirror image counts as much as the image.
        denoise: for photographs: as for `EfficientNetLite2`.
    """

    name: ClassVar[str] = "transformers"
    of_embeddings: ClassVar[tuple[str, ...]] = ("tokens", "mirrored", "denoise")

    tokens: int = 256
    mirrored: bool = True
    denoise: float | None = None

    def __post_init__(self) -> None:
        _validate.positive_integer(tokens=self.tokens)
        check_denoise(self.denoise)
        super().__post_init__()

    def weight_files(self) -> tuple[Path, ...]:
        """All files of its folder: whatever is read of it was hashed."""
        folder = self._folder()
        found = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        names = {str(path.relative_to(folder)) for path in found}
        weights = [name for name in names if name.endswith((".safetensors", ".bin")) and "/" not in name]
        if "config.json" not in names or not weights:
            raise ConfigError(f"{folder} is no folder of transformers: config.json or model.safetensors is missing.")
        if _ADAPTER in names:
            raise ConfigError(f"{folder} holds an adapter of another network; merge both, and save the result.")
        return tuple(found)

    def _folder(self) -> Path:
        needed("transformers", title=self.title, extra="text")
        if Path(self.source).is_dir():
            return Path(self.source)
        hub = needed("huggingface_hub", title=self.title, extra="text")
        try:
            return Path(hub.snapshot_download(self.source, allow_patterns=list(_FETCHED)))
        except Exception as error:  # of the hub, of the network, of the disk: many classes
            raise ConfigError(
                f"{self.source!r} is no folder, and the hub does not give it ({type(error).__name__}); download it "
                "where there is a network, and name its folder."
            ) from error

    @property
    def _config(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self._folder() / "config.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"config.json of {self.title} cannot be read: {error}") from error

    @property
    def size(self) -> int:
        """Pixels of either side that the network was made for."""
        found = self._config.get("image_size", 224)
        return int(found[0] if isinstance(found, list) else found)

    @property
    def _takes_images(self) -> bool:
        return "num_channels" in self._config

    @property
    def usual_batch(self) -> int:
        """One on a CPU, where rows are then alone."""
        return 64 if self.device == "cuda" else 1

    def inputs(self, x: Any) -> tuple[npt.NDArray[Any], Sequence[Any]]:
        """Texts, or 8-bit images."""
        return as_pictures(x, self.title) if self._takes_images else as_texts(x)

    def probes(self) -> Any:
        """Two inputs."""
        return probe_pictures() if self._takes_images else list(PROBE_TEXTS)

    def load(self) -> RowMachine:
        """The network on its device."""
        library = needed("transformers", title=self.title, extra="text")
        folder = str(self._folder())
        given: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        is_safe = any(path.suffix == ".safetensors" for path in self.weight_files())
        try:
            network, about = library.AutoModel.from_pretrained(
                folder, use_safetensors=is_safe, output_loading_info=True, **given
            )
            tokenizer = None if self._takes_images else library.AutoTokenizer.from_pretrained(folder, **given)
        except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
            raise ConfigError(f"transformers cannot load {self.title}: {error}") from error
        # What a file lacks, the library draws at random.
        drawn = {*about["missing_keys"], *(str(each) for each in about.get("mismatched_keys", ()))}
        has_pooler = not any(name.startswith("pooler.") for name in drawn)
        lacking = sorted(name for name in drawn if not name.startswith("pooler."))
        if lacking:
            raise ConfigError(f"{self.title} lacks weights, such as {lacking[0]}: they would be random numbers.")
        network = network.eval()
        if tokenizer is None:
            return _picture_machine(network, _pooled if has_pooler else _first_token, self, self._scale())
        return self._of_texts(network, tokenizer)

    def _scale(self) -> tuple[Sequence[float], Sequence[float]]:
        path = self._folder() / "preprocessor_config.json"
        said = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return said.get("image_mean") or IMAGENET_MEAN, said.get("image_std") or IMAGENET_DEVIATION

    def _of_texts(self, network: Any, tokenizer: Any) -> RowMachine:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        from mithridate._torch import products, single_threaded, usual_settings

        where, batch = torch.device(self.device), self.together
        network = network.to(where)
        # On a GPU all batches have one shape; alone, a text needs no padding.
        padding = "max_length" if batch > 1 else "do_not_pad"

        def call(inputs: list[Any]) -> npt.NDArray[np.float32]:
            texts = [text.encode("utf-8", "replace").decode("utf-8") for text in inputs]
            made = tokenizer(texts, truncation=True, max_length=self.tokens, padding=padding, return_tensors="pt")
            given = {name: value.to(where) for name, value in made.items()}
            with torch.inference_mode():
                try:
                    states = network(**given).last_hidden_state.float()
                except (RuntimeError, IndexError) as error:
                    raise ConfigError(f"{self.title} cannot encode this text; give fewer tokens: {error}") from error
                mask = given["attention_mask"][..., None].float()
                return ((states * mask).sum(1) / mask.sum(1).clamp(min=1)).cpu().numpy()

        def session() -> Any:
            from contextlib import ExitStack

            stack = ExitStack()
            settings = (usual_settings(), products("float32", where), single_threaded())
            for each in (*settings, sdpa_kernel(SDPBackend.MATH)):
                stack.enter_context(each)
            return stack

        def settle() -> None:
            torch.set_num_threads(1)
            torch.set_flush_denormal(False)

        # Tokenizers are not made for several threads at a time with padding; on a CPU each text is alone.
        return RowMachine(call, batch, "", 1 if batch > 1 else cores(), session, settle)


def _first_token(output: Any) -> Tensor:
    """The first token, where a network has no pooling of its own."""
    states = output.last_hidden_state
    return states[:, 0] if states.ndim == 3 else states.mean(dim=(2, 3))


def _pooled(output: Any) -> Tensor:
    """What a network of photographs makes of them."""
    pooled = getattr(output, "pooler_output", None)
    return _first_token(output) if pooled is None else pooled.flatten(1)

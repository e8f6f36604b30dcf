"""Noise taken out of pictures: a slow twin, what is gained and what stays, and the way from noisy inputs to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.fft import dctn, idctn
from test_pretrained import pictures, pretrained
from test_pretrained import small_efficientnet as small_efficientnet

from mithridate.core.input_change import InputNoise
from mithridate.defences import defence
from mithridate.features._denoising import denoised
from mithridate.training.input_noise import trained_on

Doubles = npt.NDArray[np.float64]
COLOURS = np.array([[1, 1, 1], [1, 0, -1], [1, -2, 1]]) / np.sqrt([[3], [2], [6]])


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MITHRIDATE_CACHE", str(tmp_path_factory.mktemp("rows")))


def slowly(picture: Doubles, deviation: float) -> Doubles:
    """One picture [3, H, W], block by block in double precision."""
    lights = np.einsum("cd,dij->cij", COLOURS, picture)
    if (picture == picture[:1]).all():
        deviation *= np.sqrt(3)

    def first(block: Doubles, _: Doubles) -> Doubles:
        kept = (np.abs(block) > 2.7 * deviation).astype(float)
        kept[0, 0] = 1
        return kept

    def second(_: Doubles, guess: Doubles) -> Doubles:
        return guess**2 / (guess**2 + deviation**2)

    guessed = _averaged(lights, lights, first)
    cleaned = _averaged(lights, guessed, second)
    return np.clip(np.einsum("dc,dij->cij", COLOURS, cleaned), 0, 255)


def _averaged(lights: Doubles, guessed: Doubles, kept_of: Any) -> Doubles:
    found = np.empty_like(lights)
    for channel, (light, guess) in enumerate(zip(lights, guessed, strict=True)):
        wide, near = (np.pad(each, 7, mode="edge") for each in (light, guess))
        said, asked = np.zeros_like(wide), np.zeros_like(wide)
        for i in range(wide.shape[0] - 7):
            for j in range(wide.shape[1] - 7):
                place = slice(i, i + 8), slice(j, j + 8)
                block, other = (dctn(each[place], norm="ortho") for each in (wide, near))
                kept = kept_of(block, other)
                weight = 1 / max(1, (kept**2).sum())
                said[place] += weight * idctn(block * kept, norm="ortho")
                asked[place] += weight
        found[channel] = (said / asked)[7:-7, 7:-7]
    return found


def scene(side: int = 24) -> Doubles:
    """A picture with smooth parts and edges."""
    i, j = np.mgrid[:side, :side] / side
    planes = (60 + 120 * i, 200 * (i + j < 0.9) + 20, 90 + 60 * np.sin(6 * j))
    return np.stack([np.broadcast_to(each, (side, side)) for each in planes])


def noisy(picture: Doubles, deviation: float, seed: int = 0) -> Doubles:
    moved = picture + deviation * np.random.default_rng(seed).standard_normal(picture.shape)
    return np.clip(np.rint(moved), 0, 255)


def by_torch(picture: Doubles, deviation: float) -> Doubles:
    return denoised(torch.from_numpy(picture[None]).float(), deviation)[0].double().numpy()


@pytest.mark.parametrize("deviation", [8.0, 60.0])
@pytest.mark.parametrize("is_grey", [False, True])
def test_it_is_what_a_slow_twin_finds_block_by_block(deviation: float, is_grey: bool) -> None:
    picture = scene(12)[:, :, :9]
    moved = noisy(np.repeat(picture[:1], 3, axis=0), 0) if is_grey else noisy(picture, deviation)
    if is_grey:
        moved = np.repeat(noisy(picture[:1], deviation), 3, axis=0)
    np.testing.assert_allclose(by_torch(moved, deviation), slowly(moved, deviation), atol=2e-3)


@pytest.mark.parametrize("deviation", [15.0, 30.0, 60.0])
def test_most_of_the_noise_goes_and_the_picture_stays(deviation: float) -> None:
    picture, moved = scene(), noisy(scene(), deviation)
    before, after = (np.mean((each - picture) ** 2) for each in (moved, by_torch(moved, deviation)))
    assert after < before / 4


def test_a_picture_of_one_colour_keeps_it_and_a_tiny_one_is_taken() -> None:
    flat = np.full((3, 10, 10), [[[10.0]], [[200.0]], [[90.0]]])
    # Wiener's filter shrinks the mean of a block by (1 + (8 mean / 40)^2)^-1 of it.
    np.testing.assert_allclose(by_torch(flat, 40), flat, atol=1)
    assert by_torch(np.full((3, 1, 2), 7.0), 40).shape == (3, 1, 2)


def test_a_picture_is_a_function_of_itself() -> None:
    both = torch.from_numpy(np.stack([noisy(scene(), 20), noisy(scene()[::-1].copy(), 20)])).float()
    torch.testing.assert_close(denoised(both, 20)[1:], denoised(both[1:], 20), atol=1e-3, rtol=0)


@pytest.mark.usefixtures("small_efficientnet")
def test_noisy_inputs_are_cleaned_by_as_much_unless_the_encoder_says_otherwise() -> None:
    x, y = pictures(12), np.arange(12) % 2
    said = {}
    for denoise in (None, 0.0):
        features = pretrained("efficientnet-lite0", size=32, columns=4, device="cpu", denoise=denoise)
        made = defence("bagging", model="linear", features=features, input_noise=0.2, instances=2, draws=4, classes=2)
        votes = made.train((x, y), x[:3], device="cpu", root_seed=bytes(32))
        assert votes.recipe is not None
        said[denoise] = votes.recipe["features"]["denoise"]
        assert any("take noise out of pictures" in each for each in votes.assumptions) == (denoise is None)
    assert said == {None: 0.2, 0.0: 0.0}
    plain = pretrained("efficientnet-lite0", size=32, columns=4, device="cpu")
    assert (plain.embeddings(x[:1]) != plain.for_noise(0.2).embeddings(x[:1])).any()


@pytest.mark.usefixtures("small_efficientnet")
def test_a_calibration_on_noisy_inputs_names_the_inputs_without_noise() -> None:
    trusted = pictures(20)
    seen = trained_on(trusted, InputNoise(0.2, "pixels"))
    bare = pretrained("efficientnet-lite0", size=32, columns=4, device="cpu").for_noise(0.2)
    made, plain = bare.calibrated(trusted, seen=seen), bare.calibrated(trusted)
    assert made.calibration is not None
    assert plain.calibration is not None
    assert (made.calibration.constants.centre != plain.calibration.constants.centre).any()
    # An attacker's examples among the trusted ones are found by what they were before the noise.
    assert [each.id for each in made.looks(trusted)] == ["tuned-on-training-data"]


@pytest.mark.usefixtures("small_efficientnet")
def test_certificates_say_what_the_constants_were_compared_on() -> None:
    plain = pretrained("efficientnet-lite0", size=32, columns=4, device="cpu")
    cleaning = plain.for_noise(0.2)
    photographs, others = (3, 32, 32), (3, 64, 64)
    assert [each.id for each in plain.statements(photographs, 10)] == ["trusted-encoder"]
    assert [each.id for each in cleaning.statements(photographs, 10)] == ["trusted-encoder", "tuned-on-training-data"]
    assert [each.id for each in cleaning.statements(others, 10)] == ["trusted-encoder", None]
    assert "CIFAR-10" in cleaning.statements(others, 10)[1]

"""A defence that is added in one file goes through train, certify, predict, report, verify and compare."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mithridate import Certificate, CertifiedClassifier, Votes, compare, verify
from mithridate.auditing import routes
from mithridate.cli import main
from mithridate.core import registry
from mithridate.data.examples import Examples
from mithridate.data.units import Units
from mithridate.defences import defence, names
from mithridate.defences import registry as _registry
from mithridate.errors import ConfigError

X = np.arange(60, dtype=np.float32).reshape(30, 2)
Y = np.array([0] * 20 + [1] * 10)
TEST = np.ones((4, 2), np.float32), np.array([0, 0, 1, 0])


@pytest.fixture(autouse=True)
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The toy is known while these tests run, and forgotten afterwards."""
    before = dict(_registry._KNOWN), dict(registry.rules._known), dict(registry.mechanisms._known)
    known = dict(routes.known_routes())  # those of the package are loaded once, and stay
    import toy_defence

    _registry.register(toy_defence.CommonestLabel)
    registry.rules.add("commonest-label", toy_defence.CommonestRule)
    registry.mechanisms.add("label-count", toy_defence.LabelCount)
    routes._routes["label-count", "commonest-label"] = toy_defence.recount
    monkeypatch.chdir(tmp_path)
    np.savez("train.npz", x=X, y=Y)
    np.savez("test.npz", x=TEST[0], y=TEST[1])
    yield
    for table, kept in zip((_registry._KNOWN, registry.rules._known, registry.mechanisms._known), before, strict=True):
        table.clear()
        table.update(kept)
    routes._routes.clear()
    routes._routes.update(known)


def test_the_command_line_knows_it_from_its_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert "commonest-label" in names()
    files = ["--train", "train.npz", "--test", "test.npz", "--run-dir", "run"]
    assert main(["train", *files, "--method", "commonest-label"]) == 0
    assert main(["certify", "run"]) == 0
    # 20 against 10, and ties go to the smaller label: ten changes leave 0 the winner, eleven do not.
    assert Certificate.load("run/certificate.json").radius.tolist() == [10] * 4
    assert main(["verify", "run/certificate.json", "--run", "run"]) == 0
    assert main(["report", "run", "--out", "report.html"]) == 0
    assert "commonest label" in Path("report.html").read_text()
    assert main(["predict", "run", "test.npz", "--out", "predictions.csv"]) == 0
    assert Path("predictions.csv").read_text().count(",10,") == 4
    capsys.readouterr()


def test_a_comparison_and_an_estimator_take_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = compare(["commonest-label", "nearest-neighbours"], ((X, Y), TEST), run_dir="runs")
    assert [entry.name for entry in found.entries] == ["commonest-label", "nearest-neighbours"]
    assert found.entries[0].accuracy([0, 10, 11]).tolist() == [0.75, 0.75, 0.0]
    Path("compare.toml").write_text('methods = ["commonest-label"]\n[data]\ntrain = "train.npz"\ntest = "test.npz"\n')
    assert main(["compare", "compare.toml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["methods"][0]["name"] == "commonest-label"
    fitted = CertifiedClassifier("commonest-label").fit(X, Y)
    assert fitted.certify(TEST[0]).radius.tolist() == [10] * 4


def test_a_forged_radius_is_refused_by_its_second_route() -> None:
    files = ["--train", "train.npz", "--test", "test.npz", "--run-dir", "run"]
    assert main(["train", *files, "--method", "commonest-label", "--json"]) == 0
    certificate = _registry.defence("commonest-label").certify(Votes.load("run/votes.npz"))
    assert isinstance(certificate, Certificate)
    forged = certificate.radius.copy()
    forged[0] += 1
    object.__setattr__(certificate, "radius", forged)
    certificate.save("forged.json")
    assert not verify("forged.json").valid


def test_without_a_second_route_nothing_is_called_valid() -> None:
    files = ["--train", "train.npz", "--test", "test.npz", "--run-dir", "run"]
    assert main(["train", *files, "--method", "commonest-label", "--json"]) == 0
    assert main(["certify", "run", "--json"]) == 0
    del routes._routes["label-count", "commonest-label"]
    found = verify("run/certificate.json")
    assert not found.valid
    assert any(check.name == "second route" and not check.passed for check in found.checks)


def test_a_defence_that_says_nothing_of_units_refuses_them() -> None:
    examples = Examples(X, Y, units=Units.of([f"v{n % 5}" for n in range(30)], "vendor"))
    with pytest.raises(ConfigError, match="cannot certify vendors"):
        defence("commonest-label", classes=2).order(examples, TEST[0])

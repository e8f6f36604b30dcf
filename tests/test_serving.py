"""Serving: answers are those of `mithridate predict`, refusals are sentences, and claims are counted."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from serving_doubles import PATIENCE, Load, asked, serve_private, serve_table, server, stopped
from starlette.testclient import TestClient
from test_cli import run

from mithridate import certify, predict
from mithridate.core.certificate import Status
from mithridate.data.columns import Category, Date, Number, Text
from mithridate.data.declarations import Arrays, Images, Table
from mithridate.data.examples import Examples
from mithridate.data.plain import MOST_PIXELS, read_plain
from mithridate.data.sources import read
from mithridate.data.units import Units
from mithridate.defences.neighbours import NearestNeighbours
from mithridate.defences.partitions import DPA
from mithridate.errors import ArtifactError, ConfigError
from mithridate.serving.app import app
from mithridate.serving.claims import FILE, ClaimBudget, ClaimsSpentError
from mithridate.serving.limits import RequestLimits
from mithridate.serving.service import Claiming, Service

KEYS = {"predictions", "unit", "threat", "method", "failure_prob", "conditional", "conditions", "certificate"}
ROW = {"petal": 4.2, "soil": "clay"}


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return serve_table(tmp_path_factory.mktemp("near"))


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return serve_private(tmp_path_factory.mktemp("private"))


@pytest.fixture(scope="module")
def client(near: Path) -> TestClient:
    return TestClient(app(near, limits=RequestLimits(max_body=4000, max_batch=50)))


@pytest.fixture
def fresh(private: Path) -> Path:
    """The private run, never served before."""
    for name in (FILE, FILE.replace(".json", ".lock")):
        (private / name).unlink(missing_ok=True)
    return private


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV file without quotes, as JSON: numbers where they are, null where a cell is empty."""
    names, *lines = (line.split(",") for line in path.read_text().splitlines())
    rows = [dict(zip(names, line, strict=True)) for line in lines]
    return [{**row, "petal": float(row["petal"]) if row["petal"] else None} for row in rows]


# --- inputs as JSON -------------------------------------------------------------------------------------------------

TABLE = Table(
    "kind",
    (
        Number("petal", low=0, high=15),
        Number("stem", low=0, high=2000, decimal=","),
        Category("soil"),
        Date("picked", first=1900, last=2100),
    ),
    classes=("daisy", "lily"),
)


@given(
    st.lists(
        st.tuples(
            st.none() | st.floats(-1e6, 1e6) | st.integers(-1000, 1000),
            st.none() | st.floats(0.001, 1e7) | st.integers(0, 1000),
            st.none() | st.sampled_from(["clay", "Sand ", "3", "3.0"]) | st.integers(0, 5),
            st.none() | st.dates().map(lambda day: day.isoformat()),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_a_row_of_json_is_the_row_of_a_file(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    cells = [
        [
            "" if cell is None else repr(cell).replace(".", ",") if at == 1 else str(cell) if at > 1 else repr(cell)
            for at, cell in enumerate(row)
        ]
        for row in rows
    ]
    lines = [";".join(["petal", "stem", "soil", "picked"]), *(";".join(row) for row in cells)]
    path.write_text("\n".join(lines) + "\n")
    expected = read(path, TABLE, labels=False).x
    values = json.loads(json.dumps(rows))
    by_name = [dict(zip(("picked", "soil", "stem", "petal"), row[::-1], strict=True)) for row in values]
    for given_ in (values, by_name):
        found = read_plain(given_, TABLE, shape=expected.shape[1:], kind="float").x
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes()


def picture(pixels: Any, form: str = "PNG") -> str:
    stream = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(stream, form)
    return base64.b64encode(stream.getvalue()).decode()


def test_pictures_are_those_of_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    declared, values = Images(size=(6, 5), channels=3), []
    for name, form in (("a.png", "PNG"), ("b.jpg", "JPEG")):
        values.append(picture(rng.integers(0, 256, (9, 12, 3)), form))
        (tmp_path / name).write_bytes(base64.b64decode(values[-1]))
    found = read_plain(values, declared, shape=(3, 6, 5), kind="uint8").x
    assert found.tobytes() == read(tmp_path, declared, labels=False).x.tobytes()


@pytest.mark.parametrize(
    ("shape", "last"), [((6, 5), False), ((1, 6, 5), False), ((3, 6, 5), False), ((3, 6, 5), True)]
)
def test_pictures_and_numbers_are_the_same_array(shape: tuple[int, ...], last: bool) -> None:
    x = np.random.default_rng(1).integers(0, 256, (2, *shape))
    last = last and len(shape) == 3
    seen = np.moveaxis(x, 1, -1) if len(shape) == 3 else x
    values = [picture(each[..., 0] if each.ndim == 3 and each.shape[-1] == 1 else each) for each in seen]
    declaration = Arrays(channels_last=True) if last else None
    as_lists = (seen if last else x).tolist()
    for given_ in (values, as_lists, [values[0], as_lists[1]]):
        found = read_plain(given_, declaration, shape=shape, kind="uint8").x
        assert found.dtype == np.uint8
        assert np.array_equal(found, x)


def broken() -> str:
    """A PNG whose pixels end too early."""
    pixels = base64.b64decode(picture(np.random.default_rng(0).integers(0, 256, (6, 5))))
    return base64.b64encode(pixels[: pixels.index(b"IDAT") + 8]).decode()


def bomb() -> str:
    """A PNG of a few kilobytes that claims more pixels than are welcome."""
    stream = io.BytesIO()
    Image.new("1", (MOST_PIXELS // 1024, 1025)).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "not a readable image"),
        ("!!", "base64"),
        (base64.b64encode(b"GIF89a").decode(), "not a readable image in PNG or JPEG"),
        (picture(np.arange(90_000).reshape(300, 300) % 251)[:2000], "300 x 300 pixels"),
        (broken(), "broken image"),
        (picture(np.zeros((5, 6))), "5 x 6 pixels; give 6 x 5"),
        (bomb(), "more than 16,777,216 pixels"),
        ([[0] * 5] * 5, "give 6 x 5 numbers"),
        ([[0] * 5] * 5 + [[0] * 4], "give 6 x 5 numbers"),
        ([[0] * 5] * 5 + [[0, 0, 0, 0, True]], "give 6 x 5 numbers"),
        ([[0] * 5] * 5 + [[0, 0, 0, 0, None]], "give 6 x 5 numbers"),
        ([[0] * 5] * 5 + [[0, 0, 0, 0, "7"]], "give 6 x 5 numbers"),
        ([[0] * 5] * 5 + [[0, 0, 0, 0, 256]], "0 to 255"),
        ([[0] * 5] * 5 + [[0, 0, 0, 0, 0.5]], "0 to 255"),
        ([[0] * 5] * 5 + [[0, 0, 0, 0, 10**30]], "0 to 255|too large"),
        (None, "give 6 x 5 numbers"),
        ({}, "give 6 x 5 numbers"),
    ],
)
def test_no_picture_is_refused(value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        read_plain([[[0] * 5] * 6, value], None, shape=(6, 5), kind="uint8")
    assert "nput 1 (from 0)" in str(caught.value)


def test_texts_are_what_they_are() -> None:
    declared = Table("kind", (Text("words"),), classes=("ham", "spam"))
    for values in (["Win now", "see you"], [{"words": "Win now"}, ["see you"]]):
        assert read_plain(values, declared, shape=(), kind="text").x.tolist() == ["Win now", "see you"]
    assert read_plain(["a", "bcd"], None, shape=(), kind="text").x.tolist() == ["a", "bcd"]
    for values in (["a", 3], ["a\0"], ["\ud800"], ["a" * (1 << 23), *"bcdefghijk"]):
        with pytest.raises(ConfigError):
            read_plain(values, None, shape=(), kind="text")


# --- answers --------------------------------------------------------------------------------------------------------


def test_an_answer_has_the_keys_that_are_promised(client: TestClient, private: Path, fresh: Path) -> None:
    exact = client.post("/predict", json={"inputs": [ROW]}).json()
    random = TestClient(app(fresh)).post("/predict", json={"inputs": [[0.0, 1.0, 0.5, -0.2]]}).json()
    for answer in (exact, random):
        assert answer.keys() == KEYS
        assert [each.keys() for each in answer["predictions"]] == [{"label", "class", "radius", "status"}]
        assert answer["predictions"][0]["status"] in set(Status)
        assert re.fullmatch("[0-9a-f]{64}", answer["certificate"]["sha256"])
    assert exact["method"] == "nearest-neighbours"
    assert (exact["failure_prob"], exact["conditional"], exact["unit"]) == (0.0, False, "example")
    assert exact["certificate"]["claims"] is None
    assert "any number of questions" in exact["certificate"]["questions"]
    assert exact["predictions"][0]["class"] in ("daisy", "lily", "rose")
    assert random["predictions"][0]["class"] is None
    assert random["conditional"]
    assert [each["id"] for each in random["conditions"]] == ["adaptive-questions"]
    assert "earlier answers" in random["certificate"]["questions"]
    assert random["certificate"]["claims"]["left"] == 9_999


def test_answers_are_those_of_predict(client: TestClient, near: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run(capsys, "predict", near, near.parent / "new.csv", "--json")
    expected = json.loads(outcome.out)
    rows = rows_of(near.parent / "new.csv")
    answers = [client.post("/predict", json={"inputs": part}).json() for part in (rows[:1], rows[1:25], rows[25:])]
    found = [each for answer in answers for each in answer["predictions"]]
    assert [(each["class"], each["radius"], each["status"]) for each in found] == [
        (each["prediction"], each["radius"], each["status"]) for each in expected["predictions"]
    ]
    for name in ("threat", "method", "conditional", "conditions"):
        assert all(answer[name] == expected[name] for answer in answers)
    assert len({answer["certificate"]["sha256"] for answer in answers}) == 1


def test_every_claim_of_a_random_method_gets_its_share(fresh: Path) -> None:
    x = np.random.default_rng(5).normal(0.5, 1.0, (30, 4)).astype(np.float32)
    claiming = Claiming(threat="remove", failure_prob=0.01, claims=500)
    answer = Service(fresh, claiming).answer(x.astype(float).tolist())
    expected = certify(predict(fresh, x), threat="remove", failure_prob=0.01 / 500)
    assert [each["label"] for each in answer["predictions"]] == expected.label.tolist()
    assert [each["radius"] for each in answer["predictions"]] == expected.radius.tolist()
    assert answer["failure_prob"] == 0.01
    assert answer["certificate"]["claims"]["failure_prob_each"] <= 0.01 / 500
    assert answer["threat"] == "remove"


def test_a_loaded_run_votes_as_one_that_is_read_anew(near: Path, private: Path, tmp_path: Path) -> None:
    from mithridate.defences.prediction import predictor

    x = np.random.default_rng(6).normal(0.5, 1.0, (20, 4)).astype(np.float32)
    votes_on = predictor(private)
    for part in (x[:1], x[1:], x):
        assert votes_on(part).equals(predict(private, part))
    table = read(near.parent / "new.csv", Table("kind", (Number("petal", low=0, high=15), Category("soil"))))
    votes_on = predictor(near)
    for part in (table, table.part(slice(3, 4)), table):
        assert votes_on(part).equals(predict(near, part))


def test_pictures_and_texts_are_predicted(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    x, y = rng.integers(0, 256, (30, 6, 5)).astype(np.uint8), np.arange(30) % 2
    defence = NearestNeighbours(neighbours=3, features="none", classes=2)
    votes = defence.train((x, y), x[:8], run_dir=tmp_path / "pictures")
    answer = Service(tmp_path / "pictures").answer([picture(each) for each in x[:8]])
    assert [each["radius"] for each in answer["predictions"]] == defence.certify(votes).radius.tolist()  # pyright: ignore[reportAttributeAccessIssue]
    words = np.array(["win money now", "see you at lunch", "win a prize", "lunch at noon"] * 5)
    defence = NearestNeighbours(neighbours=3, features="hashed-words", classes=2)
    votes = defence.train((words, np.arange(20) % 2), words[:4], run_dir=tmp_path / "texts")
    answer = Service(tmp_path / "texts").answer(words[:4].tolist())
    assert [each["label"] for each in answer["predictions"]] == defence.certify(votes).label.tolist()  # pyright: ignore[reportAttributeAccessIssue]


def test_radii_count_the_units_that_were_declared(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    y = np.arange(60) % 2
    x = (y[:, None] * 3 + rng.normal(0, 0.5, (60, 2))).astype(np.float32)
    vendors = Units.of([f"v{number // 2}" for number in range(60)], "vendor")
    defence = NearestNeighbours(neighbours=9, features="none", classes=2)
    defence.train(Examples(x, y, units=vendors), x[:4], run_dir=tmp_path / "vendors")
    answer = Service(tmp_path / "vendors").answer(x[:4].astype(float).tolist())
    assert (answer["unit"], answer["threat"]) == ("vendor", "edit")
    expected = certify(predict(tmp_path / "vendors", x[:4]))
    assert [each["radius"] for each in answer["predictions"]] == expected.radius.tolist()


def test_a_run_that_was_updated_meanwhile_answers_no_more(tmp_path: Path, near: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(near, place)
    service, rows = Service(place), rows_of(near.parent / "new.csv")
    before = service.answer(rows[:3])
    shutil.copytree(place, tmp_path / "next")
    place.rename(tmp_path / "old")
    (tmp_path / "next").rename(place)
    with pytest.raises(ArtifactError, match="start the server again"):
        service.answer(rows[:3])
    assert Service(place).answer(rows[:3]) == before  # it is the same run after all


def test_noise_that_is_drawn_for_every_question_needs_no_condition(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    y = np.arange(60) % 2
    x = (y[:, None] * 3 + rng.normal(0, 0.5, (60, 2))).astype(np.float32)
    made = {"model": "linear", "features": "none", "classes": 2, "num_train": 60, "steps": 3}
    noisy = DPA(partitions=5, input_noise=0.5, noise_draws=60, **made)  # pyright: ignore[reportArgumentType]
    noisy.train((x, y), x[:4], run_dir=tmp_path / "run", keep_models=True, device="cpu")
    answer = Service(tmp_path / "run", Claiming(claims=20)).answer(x[:4].astype(float).tolist())
    assert "fresh noise" in answer["certificate"]["questions"]
    assert answer["certificate"]["claims"]["left"] == 16
    assert "adaptive-questions" not in [each["id"] for each in answer["conditions"]]


def test_a_run_that_is_not_finished_is_refused(near: Path, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes((near / "run.json").read_bytes())
    with pytest.raises(ArtifactError, match="is not finished"):
        Service(tmp_path)


def test_who_asks_beside_others_hears_the_same(near: Path, fresh: Path) -> None:
    service, rows = Service(near), rows_of(near.parent / "new.csv")
    questions = [rows[:2], [{"petal": 1}], rows[2:9], [["big", "clay"]], rows[9:]]
    together = service.answers(questions)
    alone = [each for question in questions for each in service.answers([question])]
    assert list(map(str, together)) == list(map(str, alone))
    assert [isinstance(each, ConfigError) for each in together] == [False, True, False, True, False]
    # What only the models find out is no fault of the others, and who comes too late for the budget is alone, too.
    private = Service(fresh, Claiming(claims=4))
    good = [[0.0, 1.0, 0.5, -0.2]] * 2
    found = private.answers([good, [[1e300] * 4], good, good])
    assert [isinstance(each, ConfigError) for each in found] == [False, True, False, True]
    assert isinstance(found[3], ClaimsSpentError)
    assert private.budget is not None
    assert private.budget.left == 0


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "no JSON"),
        (b"{", 400, "no JSON"),
        (b"\xff\xfe", 400, "no JSON"),
        (b'{"inputs": [[NaN, "clay"]]}', 400, "NaN is not a number"),
        (b'{"inputs": [[Infinity, "clay"]]}', 400, "not a number"),
        (b'{"inputs": [[1e999, "clay"]]}', 400, "too large"),
        (b'{"inputs": [], "inputs": []}', 400, "twice"),
        (b"[" * 3000, 400, "nested too deeply"),
        (b"[]", 422, "Expected an object"),
        (b'{"input": []}', 422, "There is no 'input'"),
        (b'{"inputs": [], "threat": "add"}', 422, "There is no 'threat'"),
        (b'{"inputs": []}', 422, "one or more"),
        (b"{}", 422, "one or more"),
        (b'{"inputs": {"0": []}}', 422, "one or more"),
        (b'{"inputs": [[1]]}', 422, "petal, soil"),
        (b'{"inputs": [[1, "clay", 3]]}', 422, "petal, soil"),
        (b'{"inputs": [{"petal": 1}]}', 422, "no column 'soil'"),
        (b'{"inputs": [{"petal": 1, "soil": "clay", "sole": 3}]}', 422, "did you mean"),
        (b'{"inputs": [{"petal": "big", "soil": "clay"}]}', 422, "input 0 .from 0. holds 'big'"),
        (b'{"inputs": [[1, "clay"], {"petal": [1], "soil": "clay"}]}', 422, "'petal' of input 1"),
        (b'{"inputs": ["clay"]}', 422, "an object with the columns"),
        (b'{"inputs": [null]}', 422, "an object with the columns"),
        (b'{"inputs": [[1, "\\u0000"]]}', 422, "no text"),
        (b'{"inputs": [' + b",".join([b"[1,2]"] * 51) + b"]}", 413, "51 inputs are more than 50"),
        (b'{"inputs": "' + b"x" * 4000 + b'"}', 413, "more than 4,000 bytes"),
        (b"x" * 50_000, 413, "more than 4,000 bytes"),
    ],
)
def test_bad_requests_are_refused_in_a_sentence(client: TestClient, body: bytes, status: int, said: str) -> None:
    answer = client.post("/predict", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.json().keys() == {"error"}
    assert re.search(said, answer.json()["error"]["message"]), answer.text
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"Content-Type": "text/plain"}, "got text/plain"),
        ({"Content-Type": "multipart/form-data; boundary=x"}, "got multipart"),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, "Content-Encoding gzip"),
    ],
)
def test_bodies_of_other_types_are_refused(client: TestClient, headers: dict[str, str], said: str) -> None:
    answer = client.post("/predict", content=b"{}", headers=headers)
    assert answer.status_code == 415
    assert said in answer.json()["error"]["message"]


def test_other_addresses_and_methods_are_refused(client: TestClient) -> None:
    for path, status in (("/", 404), ("/docs", 404), ("/predict/", 404), ("/predict", 405)):
        answer = client.get(path, follow_redirects=False)
        assert answer.status_code == status
        assert answer.json()["error"]["message"]


def test_what_breaks_inside_is_told_to_the_operator_alone(
    near: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = app(near)

    def broken(*_: Any) -> Any:
        raise ArtifactError("/secret/place is gone.")

    monkeypatch.setattr(Service, "answers", broken)
    answer = TestClient(service).post("/predict", json={"inputs": [ROW]})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "/secret/place" in caplog.text


def test_only_who_brings_the_token_is_answered(near: Path) -> None:
    asked_by = TestClient(app(near, token="0123456789abcdef"))
    for header in (None, "", "Bearer", "Bearer 0123456789abcdeg", "Basic 0123456789abcdef", "Bearer é"):
        headers = {} if header is None else {"Authorization": header.encode("latin-1")}
        for answer in (
            asked_by.post("/predict", json={"inputs": [ROW]}, headers=headers),  # pyright: ignore[reportArgumentType]
            asked_by.get("/metrics", headers=headers),  # pyright: ignore[reportArgumentType]
        ):
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"
    headers = {"Authorization": "Bearer 0123456789abcdef"}
    assert asked_by.post("/predict", json={"inputs": [ROW]}, headers=headers).status_code == 200
    assert asked_by.get("/metrics", headers=headers).status_code == 200
    assert asked_by.get("/healthz").status_code == 200


def test_who_comes_while_too_many_wait_is_asked_to_come_again(near: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow(self: Service, questions: list[Any]) -> list[Any]:
        begun.set()
        assert may_end.wait(PATIENCE)
        return [{} for _ in questions]

    monkeypatch.setattr(Service, "answers", slow)
    with TestClient(app(near, limits=RequestLimits(waiting=1))) as asked_by, ThreadPoolExecutor(1) as other:
        first = other.submit(asked_by.post, "/predict", json={"inputs": [ROW]})
        assert begun.wait(PATIENCE)
        second = asked_by.post("/predict", json={"inputs": [ROW]})
        assert asked_by.get("/healthz").json() == {"status": "ok"}
        may_end.set()
        assert first.result(PATIENCE).status_code == 200
    assert second.status_code == 503
    assert second.headers["Retry-After"] == "1"


# --- metrics and the description --------------------------------------------------------------------------------------


def test_metrics_count_what_was_asked(fresh: Path) -> None:
    asked_by = TestClient(app(fresh, claiming=Claiming(claims=7)))
    for inputs in ([[0.0] * 4] * 2, [[0.0] * 4] * 3, [[0.0] * 3], [[0.0] * 4] * 3):
        asked_by.post("/predict", json={"inputs": inputs})
    lines = asked_by.get("/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values['mithridate_requests_total{status="200"}'] == "2"
    assert values['mithridate_requests_total{status="422"}'] == "1"
    assert values['mithridate_requests_total{status="429"}'] == "1"
    assert values["mithridate_predictions_total"] == "5"
    assert values["mithridate_claims_left"] == "2"
    assert values["mithridate_requests_in_flight"] == "0"
    assert values["mithridate_request_seconds_count"] == values['mithridate_request_seconds_bucket{le="+Inf"}'] == "4"
    buckets = [int(value) for name, value in values.items() if "_bucket" in name]
    assert buckets == sorted(buckets)
    named = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert all(re.sub(r"(_bucket|_sum|_count)?(\{.*)?$", "", name) in named for name in values)


def test_the_description_names_what_there_is(client: TestClient) -> None:
    said = client.get("/openapi.json").json()
    assert said["paths"].keys() == {"/predict", "/healthz", "/metrics"}
    answer = said["components"]["schemas"]["Answer"]
    assert set(answer["required"]) == set(answer["properties"]) == KEYS
    assert said["components"]["schemas"]["Prediction"]["properties"]["status"]["enum"] == [
        each.value for each in Status
    ]
    references = re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(said))
    assert set(references) <= said["components"]["schemas"].keys()


# --- the budget of claims ---------------------------------------------------------------------------------------------


@given(st.integers(1, 10**9), st.floats(1e-12, 1.0, exclude_max=True))
def test_all_shares_together_are_no_more_than_the_whole(budget: int, failure_prob: float) -> None:
    each = ClaimBudget(Path(), "run", budget, failure_prob).failure_prob_each
    assert 0 < each
    assert budget * Fraction(each) <= Fraction(failure_prob)


def test_the_budget_outlives_restarts(fresh: Path) -> None:
    questions = {"inputs": [[0.0] * 4] * 2}
    for left in (3, 1):
        answer = TestClient(app(fresh, claiming=Claiming(claims=5))).post("/predict", json=questions)
        assert answer.json()["certificate"]["claims"]["left"] == left
    last = TestClient(app(fresh))  # which takes the budget as it is
    refused = last.post("/predict", json=questions)
    assert refused.status_code == 429
    assert re.search("Of 5 claims 1 are left", refused.json()["error"]["message"])
    assert last.post("/predict", json={"inputs": [[0.0] * 4]}).status_code == 200
    assert last.post("/predict", json={"inputs": [[0.0] * 4]}).status_code == 429
    for other in (Claiming(claims=6), Claiming(failure_prob=0.01)):
        with pytest.raises(ConfigError, match="claims=5"):
            app(fresh, claiming=other)


def test_what_is_refused_takes_no_claims(fresh: Path) -> None:
    asked_by = TestClient(app(fresh, claiming=Claiming(claims=5)))
    for inputs in ([], [[0.0] * 3], [["x"] * 4], [[0.0] * 4, None]):
        assert asked_by.post("/predict", json={"inputs": inputs}).status_code == 422
    assert json.loads((fresh / FILE).read_text())["used"] == 0


def test_who_asks_at_the_same_time_gets_no_claim_twice(tmp_path: Path) -> None:
    budgets = [ClaimBudget.open(tmp_path, "run", 100, 0.001) for _ in range(4)]

    def take(budget: ClaimBudget) -> int:
        taken = 0
        while True:
            try:
                budget.reserve(3)
            except ClaimsSpentError:
                return taken
            taken += 3

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(take, budgets)) == 99
    assert budgets[0].left == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b'{"used": 0}', b'{"schema": "mithridate.served-claims/1", "run": "run", "budget": 5, '
     b'"failure_prob": 0.001, "used": 6}'],
)  # fmt: skip
def test_a_damaged_count_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ArtifactError, match="damaged"):
        ClaimBudget.open(tmp_path, "run", 5, 0.001)


def test_a_count_that_was_removed_ends_the_answers(fresh: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked_by = TestClient(app(fresh, claiming=Claiming(claims=5)))
    (fresh / FILE).unlink()
    assert asked_by.post("/predict", json={"inputs": [[0.0] * 4]}).status_code == 500
    assert "removed or replaced" in caplog.text


def test_an_exact_method_has_no_budget(near: Path) -> None:
    with pytest.raises(ConfigError, match="is exact and needs no budget: leave claims out"):
        Service(near, Claiming(claims=5))
    assert not (near / FILE).exists()


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--host", "0.0.0.0"], "--host '0.0.0.0' lets other machines ask, and there is no token; give --token-file"),
        (["--host", "no such host"], "--host"),
        (["--port", "65536"], "Expected --port from 0 to 65535, got 65536"),
        (["--workers", "0"], "--workers"),
        (["--max-body", "0"], "--max-body"),
        (["--max-batch", "-1"], "--max-batch"),
        (["--failure-prob", "1"], "--failure-prob"),
        (["--claims", "0"], "--claims"),
        (["--claims", "7"], "leave --claims out"),
        (["--token-file", "nowhere"], "nowhere"),
    ],
)
def test_bad_flags_are_refused(near: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str) -> None:
    outcome = run(capsys, "serve", near, *flags)
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.err.count("\n") == 1


def test_no_run_no_token_and_no_port_are_refused(
    near: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Give the directory of a run" in run(capsys, "serve", tmp_path).err
    (tmp_path / "token").write_text("short\n")
    assert "openssl rand" in run(capsys, "serve", near, "--token-file", tmp_path / "token").err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        outcome = run(capsys, "serve", near, "--port", taken.getsockname()[1])
    assert outcome.code == 2
    assert "Use another port" in outcome.err


def test_without_fastapi_it_says_what_to_install(
    near: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    import mithridate.serving

    monkeypatch.delitem(sys.modules, "mithridate.serving.running", raising=False)
    monkeypatch.delattr(mithridate.serving, "running", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    outcome = run(capsys, "serve", near)
    assert outcome.code == 2
    assert "pip install 'mithridate[serve]'" in outcome.err


# --- real servers -----------------------------------------------------------------------------------------------------


@pytest.mark.more
def test_a_server_stops_in_good_order_under_load(near: Path) -> None:
    for number, status in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        with server(near) as running, Load(running, rows_of(near.parent / "new.csv")[:5], threads=4) as load:
            load.wait_for(20)
            assert stopped(running, number) == status
        assert load.lost == []
        assert load.whole.keys() == {200}
        # Whoever waited for an answer has it, or a connection that was closed before the question was read.
        assert load.whole[200] + load.failed == load.started


@pytest.mark.more
def test_a_killed_server_loses_no_answer_without_an_error_and_no_claim(fresh: Path) -> None:
    question = [[0.0, 1.0, 0.5, -0.2]] * 3
    flags = ("--workers", "2", "--claims", "300")
    with server(fresh, *flags) as running, Load(running, question, threads=4) as first:
        first.wait_for(15)
        running.process.kill()
    assert first.lost == []
    assert first.whole[200] + first.failed == first.started
    assert 3 * first.whole[200] <= json.loads((fresh / FILE).read_text())["used"] <= 300
    with server(fresh) as running, Load(running, question, threads=4) as second:
        second.wait_for(110)  # until there are no claims left, and then some
        assert stopped(running) == 0
    assert second.lost == []
    assert second.whole.keys() <= {200, 429}
    assert second.whole[429] > 0
    assert 3 * (first.whole[200] + second.whole.get(200, 0)) <= 300
    assert json.loads((fresh / FILE).read_text())["used"] == 300


@pytest.mark.more
def test_a_killed_worker_is_replaced_behind_a_token(near: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    flags = ("--workers", "2", "--host", "0.0.0.0", "--token-file", str(tmp_path / "token"))
    with server(near, *flags) as running:
        assert asked(running, [ROW])[0] == 401
        assert asked(running, [ROW], Authorization="Bearer 0123456789abcdef")[0] == 200
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
        workers = [each for each in children if b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes()]
        assert len(workers) == 2
        for each in workers:
            os.kill(int(each), signal.SIGKILL)
        # Questions wait until there is somebody to answer.
        assert asked(running, [ROW], Authorization="Bearer 0123456789abcdef")[0] == 200
        assert stopped(running) == 0


def _resident(pid: int) -> int:
    """Bytes that a process holds in memory."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.slow
def test_an_hour_of_questions(near: Path) -> None:
    """No answer is lost, no request fails, and memory does not grow; MITHRIDATE_SOAK_SECONDS says for how long."""
    seconds = float(os.environ.get("MITHRIDATE_SOAK_SECONDS", "3600"))
    with server(near) as running:
        with Load(running, rows_of(near.parent / "new.csv"), threads=4) as load:
            load.wait_for(500)
            before, until = _resident(running.process.pid), time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(1.0)
        assert _resident(running.process.pid) < before + (32 << 20)
        assert load.whole.keys() == {200}
        assert (load.failed, load.lost) == (0, [])
        assert stopped(running) == 0

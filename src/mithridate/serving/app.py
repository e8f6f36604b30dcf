"""The door: HTTP in, JSON out. It reads no more than the limits allow, and says in a sentence what is wrong."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, Response

from mithridate._io.files import PathLike, parse_json
from mithridate._text import one_line, printable
from mithridate._version import VERSION
from mithridate.errors import ConfigError, NumericalError
from mithridate.serving import contract
from mithridate.serving.claims import ClaimsSpentError
from mithridate.serving.limits import RequestLimits, is_welcome
from mithridate.serving.metrics import CONTENT_TYPE, Metrics
from mithridate.serving.service import Claiming, Service

_log = logging.getLogger(__name__)
_JSON = "application/json"
# Of a body that is too large so much is read and thrown away, so that its sender hears why; a multiple of the limit.
_READ_ANYWAY = 4


# Inputs, and where their answer goes.
_Waiting = tuple[list[Any], "asyncio.Future[bytes]"]


class Refused(Exception):
    """A request that is answered by a status and a sentence."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def app(
    run_dir: PathLike,
    *,
    claiming: Claiming | None = None,
    device: str = "auto",
    limits: RequestLimits | None = None,
    token: str | None = None,
) -> FastAPI:
    """The application that serves a finished run, for a server of one's own.

    Args:
        run_dir: the directory of a run that kept what predictions need.
        claiming: what is claimed of predictions.
        device: `cpu`, `cuda`, `mps` or `auto`.
        limits: what a request may ask for.
        token: what requests have to bring as `Authorization: Bearer ...`; None: nothing.

    Raises:
        ArtifactError: the run is not finished, keeps nothing for predictions, or is damaged.
        ConfigError: it cannot be served, or not so.
    """
    return app_of(Service(run_dir, claiming, device=device), limits or RequestLimits(), token, Metrics())


def app_of(service: Service, limits: RequestLimits, token: str | None, metrics: Metrics) -> FastAPI:
    """The application for a service that is there."""
    door = _Door(service, limits, token, metrics)
    # No pages of its own, which would load scripts from elsewhere.
    made = FastAPI(
        title="mithridate",
        version=VERSION,
        summary=contract.SUMMARY,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    made.add_api_route("/predict", door.predict, methods=["POST"], **contract.PREDICT)
    made.add_api_route("/healthz", door.health, methods=["GET"], **contract.HEALTH)
    made.add_api_route("/metrics", door.measure, methods=["GET"], **contract.METRICS)
    made.add_exception_handler(HTTPException, _unknown)
    made.openapi = lambda: contract.described(made)
    return made


class _Door:
    """What becomes of requests."""

    def __init__(self, service: Service, limits: RequestLimits, token: str | None, metrics: Metrics) -> None:
        self._service, self._limits, self._token, self._metrics = service, limits, token, metrics
        self._inside = 0
        self._waiting: deque[_Waiting] = deque()
        self._is_predicting = False
        self._predicting: asyncio.Task[None] | None = None  # a task that nobody holds may be lost
        # One prediction at a time, beside the loop that answers others.
        self._thread = ThreadPoolExecutor(1, "predict")

    async def health(self) -> Response:
        """Whether the server is there."""
        return _json(200, {"status": "ok"})

    async def measure(self, request: Request) -> Response:
        """What the server did."""
        try:
            self._check_token(request)
            labels = {"version": VERSION, "method": self._service.method}
            budget = self._service.budget
            left = None if budget is None else await asyncio.to_thread(lambda: budget.left)
            return PlainTextResponse(self._metrics.text(labels, left), media_type=CONTENT_TYPE)
        except Exception as error:
            return _refusal(error)

    async def predict(self, request: Request) -> Response:
        """Predictions, or why there are none."""
        started, status, predictions = time.perf_counter(), 500, 0
        self._metrics.begin()
        try:
            found, predictions = await self._answered(request)
            status = 200
            return Response(found, media_type=_JSON)
        except Exception as error:
            refusal = _refusal(error)
            status, predictions = refusal.status_code, 0
            return refusal
        finally:
            self._metrics.end(status, time.perf_counter() - started, predictions)

    async def _answered(self, request: Request) -> tuple[bytes, int]:
        self._check_token(request)
        self._check_headers(request)
        if self._inside >= self._limits.waiting:
            raise Refused(503, "Too many requests are waiting; ask again in a moment.", Retry_After="1")
        self._inside += 1
        try:
            inputs = await asyncio.to_thread(self._inputs, await self._body(request))
            answer = asyncio.get_running_loop().create_future()
            self._waiting.append((inputs, answer))
            if not self._is_predicting:
                self._is_predicting = True
                self._predicting = asyncio.create_task(self._predict_all())
            return await answer, len(inputs)
        finally:
            self._inside -= 1

    async def _predict_all(self) -> None:
        """Answer who waits, together as far as a batch may be large, until nobody does."""
        try:
            while self._waiting:
                some = self._next()
                questions = [inputs for inputs, _ in some]
                found = await asyncio.get_running_loop().run_in_executor(self._thread, self._asked, questions)
                for (_, answer), said in zip(some, found, strict=True):
                    if answer.done():  # who asked is gone
                        continue
                    if isinstance(said, Exception):
                        answer.set_exception(said)
                    else:
                        answer.set_result(said)
        finally:
            self._is_predicting = False

    def _next(self) -> list[_Waiting]:
        """Those who wait longest, as many as make one batch."""
        taken = [self._waiting.popleft()]
        size = len(taken[0][0])
        while self._waiting and size + len(self._waiting[0][0]) <= self._limits.max_batch:
            taken.append(self._waiting.popleft())
            size += len(taken[-1][0])
        return taken

    def _check_token(self, request: Request) -> None:
        if not is_welcome(request.headers.get("authorization"), self._token):
            raise Refused(401, "Send the token as Authorization: Bearer TOKEN.", WWW_Authenticate="Bearer")

    def _check_headers(self, request: Request) -> None:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != _JSON:
            raise Refused(415, f"Expected a body of {_JSON}, got {printable(kind[:80]) or 'no Content-Type'}.")
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding != "identity":
            raise Refused(415, f"Expected a body as it is, got Content-Encoding {printable(coding[:80])}.")

    async def _body(self, request: Request) -> bytes:
        """The body; of one that is too large the beginning is read, so that its sender listens."""
        most, size, parts = self._limits.max_body, 0, list[bytes]()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                async for part in request.stream():
                    size += len(part)
                    if size <= most:
                        parts.append(part)
                    elif size > _READ_ANYWAY * most:
                        break
        except TimeoutError as error:
            raise Refused(408, f"The body did not arrive within {self._limits.body_seconds:g} seconds.") from error
        except ClientDisconnect as error:
            raise Refused(400, "The body ended too early.") from error
        if size > most:
            raise Refused(413, f"The body has more than {most:,} bytes; ask about fewer inputs at a time.")
        return b"".join(parts)

    def _asked(self, questions: list[list[Any]]) -> list[bytes | Exception]:
        """In the thread that predicts: the answers as text, or why there are none."""
        try:
            found = self._service.answers(questions)
            return [each if isinstance(each, Exception) else _text(each) for each in found]
        except Exception as error:
            return [error] * len(questions)

    def _inputs(self, body: bytes) -> list[Any]:
        try:
            said = parse_json(body)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"The body is no JSON ({one_line(str(error))[:200]}).") from error
        if not isinstance(said, dict):
            raise Refused(422, 'Expected an object, such as {"inputs": [...]}.')
        unknown = [name for name in said if name != "inputs"]
        if unknown:
            raise Refused(422, f"There is no {one_line(repr(unknown[0]))[:80]}; send inputs, and nothing beside.")
        inputs = said.get("inputs")
        if not isinstance(inputs, list) or not inputs:
            raise Refused(422, "Expected inputs as a list of one or more; each is a row, a text or a picture.")
        if len(inputs) > self._limits.max_batch:
            raise Refused(
                413, f"{len(inputs):,} inputs are more than {self._limits.max_batch:,}; ask in several parts."
            )
        return inputs


# --- answers --------------------------------------------------------------------------------------------------------


def _text(content: Any) -> bytes:
    return json.dumps(content, allow_nan=False).encode()


def _json(status: int, content: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(_text(content), status, headers, _JSON)


def _refusal(error: Exception) -> Response:
    """What is said where there is no answer; of what is no fault of the request, nothing but that."""
    if isinstance(error, Refused):
        return _refused(error.status, error.message, error.headers)
    if isinstance(error, ClaimsSpentError):
        return _refused(429, str(error))
    if isinstance(error, ConfigError | NumericalError):
        return _refused(422, str(error))
    # For whoever runs the server; with paths, which are nobody else's business.
    detailed = os.environ.get("MITHRIDATE_DEBUG", "") not in ("", "0")
    reason = printable(one_line(f"{type(error).__name__}: {error}"))
    _log.error("mithridate: no answer: %s", reason, exc_info=error if detailed else None)
    return _refused(500, "The server could not answer; its operator finds the reason in its log.")


def _refused(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return _json(status, {"error": {"message": printable(message)}}, headers)


async def _unknown(request: Request, error: Exception) -> Response:
    """Other addresses and methods."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    words = {
        404: "There is no such address; ask POST /predict, GET /healthz, GET /metrics or GET /openapi.json.",
        405: "This address takes another method; ask POST /predict, GET /healthz or GET /metrics.",
    }
    headers = dict(getattr(error, "headers", None) or {})
    return _refused(status, words.get(status, "This request cannot be answered."), headers)


# --- workers --------------------------------------------------------------------------------------------------------


def of_settings(settings: dict[str, Any]) -> FastAPI:
    """The application of a worker, by the plain values that its parent left; see `running`."""
    from mithridate.serving.limits import read_token

    service = Service(settings["run_dir"], Claiming(**settings["claiming"]), device=settings["device"])
    token = None if settings["token_file"] is None else read_token(Path(settings["token_file"]))
    return app_of(service, RequestLimits(**settings["limits"]), token, Metrics(Path(settings["metrics"])))

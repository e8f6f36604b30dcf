"""What the addresses take and give, as OpenAPI says it."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

SUMMARY = "Predictions, each with a certificate against changes of the training data."

_PREDICTION = {
    "type": "object",
    "required": ["label", "class", "radius", "status"],
    "properties": {
        "label": {"type": "integer", "minimum": 0, "description": "The label, by its number."},
        "class": {"type": ["string", "null"], "description": "Its name, where the classes have names."},
        "radius": {
            "type": "integer",
            "minimum": -1,
            "description": "Up to so many changed units the label stays the same; -1: nothing is certified.",
        },
        "status": {
            "type": "string",
            "enum": ["certified", "not_separated", "search_limit", "numerical", "size_limit", "input_change"],
            "description": "How the search for the radius ended.",
        },
    },
}
_CONDITION = {
    "type": "object",
    "required": ["id", "sentence", "remedy"],
    "properties": {name: {"type": "string"} for name in ("id", "sentence", "remedy")},
}
_CERTIFICATE = {
    "type": "object",
    "description": "Which claim the answer is part of.",
    "properties": {
        "sha256": {"type": "string", "description": "Of all that is said of every prediction alike."},
        "run": {"type": ["string", "null"], "description": "The run whose models voted, where they are named."},
        "training": {"type": ["object", "null"], "description": "Fingerprints of the training data."},
        "bounds": {"type": "string", "description": "The confidence bounds, or exact."},
        "questions": {"type": "string", "description": "What any number of questions does to the claims."},
        "claims": {
            "type": ["object", "null"],
            "description": "Of a random method: how many claims there are and are left, and what each may fail with.",
        },
    },
}
_ANSWER = {
    "type": "object",
    "required": [
        *("predictions", "unit", "threat", "method", "failure_prob", "conditional", "conditions", "certificate"),
    ],
    "properties": {
        "predictions": {"type": "array", "items": {"$ref": "#/components/schemas/Prediction"}},
        "unit": {"type": "string", "description": "What radii count."},
        "threat": {"type": "string", "description": "What may have become of each of them."},
        "method": {"type": "string", "description": "The rule that certified."},
        "failure_prob": {
            "type": "number",
            "description": "With which any of all claims of the budget may fail; 0 of exact methods.",
        },
        "conditional": {"type": "boolean", "description": "Whether the claims rest on conditions."},
        "conditions": {"type": "array", "items": {"$ref": "#/components/schemas/Condition"}},
        "certificate": {"$ref": "#/components/schemas/Certificate"},
    },
}
_QUESTION = {
    "type": "object",
    "required": ["inputs"],
    "additionalProperties": False,
    "properties": {
        "inputs": {
            "type": "array",
            "minItems": 1,
            "description": "Rows (objects by column, or lists in the declared order), texts, pictures (PNG or JPEG in "
            "base64), or numbers in lists.",
            "items": {},
        }
    },
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {"type": "object", "required": ["message"], "properties": {"message": {"type": "string"}}},
    },
}
_SCHEMAS = {
    "Question": _QUESTION,
    "Answer": _ANSWER,
    "Prediction": _PREDICTION,
    "Condition": _CONDITION,
    "Certificate": _CERTIFICATE,
    "Error": _ERROR,
}
_REFUSALS = {
    400: "The body is no JSON.",
    401: "The token is missing or wrong.",
    408: "The body did not arrive in time.",
    413: "The body or the batch is too large.",
    415: "The body is of another type.",
    422: "An input is not like those of the training data.",
    429: "There are no claims left.",
    500: "The server could not answer.",
    503: "Too many requests are waiting.",
}


def _content(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"description": _REFUSALS[status], "content": _content("Error")} for status in statuses}


_TOKEN = [{"token": []}]
PREDICT: dict[str, Any] = {
    "summary": "Predict and certify",
    "response_model": None,
    "responses": {
        200: {"description": "A prediction for every input.", "content": _content("Answer")},
        **_refusals(*_REFUSALS),
    },
    "openapi_extra": {"requestBody": {"required": True, "content": _content("Question")}, "security": _TOKEN},
}
HEALTH: dict[str, Any] = {"summary": "Whether the server is there", "response_model": None}
METRICS: dict[str, Any] = {
    "summary": "What the server did, for Prometheus",
    "response_model": None,
    "responses": {
        200: {"description": "Metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **_refusals(401),
    },
    "openapi_extra": {"security": _TOKEN},
}


def described(app: FastAPI) -> dict[str, Any]:
    """The description of an application, computed once."""
    if app.openapi_schema is None:
        said = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        parts = said.setdefault("components", {})
        parts["schemas"] = {**parts.get("schemas", {}), **_SCHEMAS}
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = said
    return app.openapi_schema

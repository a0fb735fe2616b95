"""The published schema of what --json prints."""

from __future__ import annotations

import inspect
import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec

import ddpdoctor.report
from ddpdoctor.report.contract import Report

SCHEMA_FILE = Path(ddpdoctor.report.__file__).parent / "report.schema.json"


@cache
def _validator() -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))


def check_against_schema(report: Any) -> None:
    """Raise `jsonschema_rs.ValidationError` where a decoded report isn't as the schema says."""
    _validator().validate(report)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of `Report`, as it is to be published."""
    schema = _cleaned(msgspec.json.schema(Report))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "ddpdoctor report", **schema}


def _cleaned(schema: Any) -> Any:
    """Descriptions come from docstrings, whose indentation Python keeps before 3.13 and drops from then on."""
    if isinstance(schema, dict):
        return {
            key: inspect.cleandoc(value) if key == "description" and isinstance(value, str) else _cleaned(value)
            for key, value in schema.items()
        }
    if isinstance(schema, list | tuple):
        return [_cleaned(part) for part in schema]
    return schema

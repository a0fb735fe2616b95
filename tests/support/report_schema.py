"""The published schema of what --json prints."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs

import ddpdoctor.report

SCHEMA_FILE = Path(ddpdoctor.report.__file__).parent / "report.schema.json"


@cache
def _validator() -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))


def check_against_schema(report: Any) -> None:
    """Raise `jsonschema_rs.ValidationError` where a decoded report isn't as the schema says."""
    _validator().validate(report)

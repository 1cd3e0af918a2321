"""The report as one page: a template, its style and its script, which lie beside this file, around the report's data.

The page asks the network for nothing. All of a model's names are data: they travel as JSON in which no ``<`` occurs, and the
script makes text nodes of them, never markup.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib.resources import files
from typing import Any


def render(data: Mapping[str, Any], texts: Mapping[str, Mapping[str, str]]) -> str:
    """data: :meth:`redfuser.report.Report.to_json`; texts: by kernel, what each stage made of it."""
    page = _part("report.html")
    parts = {"/* style */": _part("report.css"), "/* script */": _part("report.js"),
             "null/* data */": _json({"report": data, "texts": {k: dict(v) for k, v in texts.items()}})}
    for place, text in parts.items():
        before, after = page.split(place)
        page = before + text + after
    return page


def _part(name: str) -> str:
    return (files("redfuser.page") / name).read_text(encoding="utf-8")


def _json(data: Any) -> str:
    """JSON that ends no script element and opens no comment, whatever is in it; numbers that are not finite are null."""
    text = json.dumps(finite(data), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def finite(data: Any) -> Any:
    """The same with null for numbers that are not finite, which JSON lacks."""
    if isinstance(data, Mapping):
        return {str(key): finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


__all__ = ["finite", "render"]

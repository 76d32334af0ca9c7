"""The HTML file: data, script and style in one. It opens from disk and makes no network request."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'; media-src blob: data:; img-src data:">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<div id="page"><noscript>This page needs JavaScript, which is switched off in this browser.</noscript></div>
<script type="application/json" id="report">{data}</script>
<script>
{script}</script>
</body>
</html>
"""


def format_page(title: str, data: Mapping[str, Any]) -> str:
    """Return the page of JSON-like data; numbers that JSON does not have, such as infinity, become null."""
    style, script = (files(__package__).joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return PAGE.format(title=escape(title), style=style, script=script, data=encode_data(data))


def encode_data(data: Any) -> str:
    """Return JSON for the inside of a script element: nothing in it can end that element or open a comment."""
    text = json.dumps(_finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _finite(value: Any) -> Any:
    """Replace infinite rates, such as the WER of a session without words, by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value

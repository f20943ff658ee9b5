"""One HTML file with all that a folder's experiments gave: tables and figures, nothing from elsewhere."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acespec.bench.lab.document import Document
from acespec.bench.lab.markdown import origin_lines
from acespec.bench.lab.views import views
from acespec.errors import AcespecError

REPORT_FILE = "report.html"

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>AceSpec: measured</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; font-variant-numeric: tabular-nums; }
th, td { border: 1px solid #ccc; padding: .2rem .6rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
thead { background: #f2f2f2; }
img { max-width: 100%; }
.wide { overflow-x: auto; }
.failed { color: #b00020; font-weight: bold; }
code, pre { font-size: .85rem; }
pre { overflow-x: auto; background: #f8f8f8; padding: 1rem; }
</style>
</head>
<body>
<h1>AceSpec: measured</h1>
<ul>{% for part in parts %}<li><a href="#{{ part.name }}">{{ part.title }}</a></li>{% endfor %}</ul>
{% for part in parts %}
<h2 id="{{ part.name }}">{{ part.title }}</h2>
{% for line in part.origin %}<p>{{ line }}</p>
{% endfor %}
{% for plot in part.plots %}<p><img alt="{{ plot.name }}" src="{{ plot.source }}"></p>
{% endfor %}
{% for view in part.views %}
<h3>{{ view.title }}</h3>
{% if view.note %}<p>{{ view.note }}</p>{% endif %}
{% if view.rows %}<div class="wide"><table>
<thead><tr>{% for name in view.header %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in view.rows %}<tr>{% for cell in row -%}
<td{% if cell.text == "failed" %} class="failed"{% endif %}>
{%- if cell.strong %}<strong>{{ cell.text }}</strong>{% else %}{{ cell.text }}{% endif %}</td>
{%- endfor %}</tr>
{% endfor %}
</tbody>
</table></div>{% endif %}
{% endfor %}
<details><summary>Settings</summary><pre>{{ part.settings }}</pre></details>
{% endfor %}
</body>
</html>
"""


def write_report(folder: Path, documents: Sequence[Document]) -> bytes:
    """The report on ``documents``; the figures are those that lie in ``folder``."""
    from jinja2 import Environment, StrictUndefined

    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(_PAGE)
    return page.render(parts=[_part(folder, document) for document in documents]).encode()


def read_document(path: Path) -> Document:
    """An experiment's JSON. Raises ``AcespecError`` if it cannot be read."""
    try:
        document: Document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise AcespecError(f"cannot read {path}: {error}; remove it, and measure again") from error
    return document


def _part(folder: Path, document: Document) -> dict[str, Any]:
    return {
        "name": document["experiment"],
        "title": document["title"],
        "origin": [line.replace("`", "") for line in origin_lines(document)],
        "plots": [
            {"name": name, "source": _embedded(folder / name)}
            for name in document["plots"]
            if (folder / name).is_file()
        ],
        "views": views(document),
        "settings": json.dumps(document["settings"], indent=1),
    }


def _embedded(path: Path) -> str:
    """An SVG file as a data URL: ids in one cannot clash with those in another."""
    return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"

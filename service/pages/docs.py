"""The routes /docs and /openapi.json, and the HTML page that shows the OpenAPI document.

The page is complete without scripts. Where scripts are served, one adds to each route a form that
sends its example, which can be edited; /docs/plain stays without.
"""

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from s2sent.service.api.embedding import service_of
from s2sent.service.api.responses import JSON
from s2sent.service.pages.html import page_headers, whole_page

router = APIRouter(include_in_schema=False)

Node = Mapping[str, Any]

READING = ["GET", "HEAD"]
SCRIPT = "static/try.js"
_CODE = re.compile("``(.+?)``")


@router.api_route("/docs", methods=READING)
async def docs(request: Request) -> Response:
    """The OpenAPI document as a page for people, on which routes can be tried."""
    return _page(request, scripts=service_of(request).settings.serves_playground)


@router.api_route("/docs/plain", methods=READING)
async def plain_docs(request: Request) -> Response:
    """The same without scripts."""
    return _page(request, scripts=False)


@router.api_route("/openapi.json", methods=READING)
async def openapi(request: Request) -> Response:
    """The OpenAPI document as JSON."""
    content = orjson.dumps(request.app.openapi())
    return Response(content, media_type=JSON, headers=page_headers())


def _page(request: Request, *, scripts: bool) -> Response:
    state = request.app.state
    if not hasattr(state, "api_pages"):  # rendered once, at the first request
        state.api_pages = {}
    if scripts not in state.api_pages:
        state.api_pages[scripts] = api_page(request.app.openapi(), SCRIPT if scripts else "")
    headers = page_headers(scripts=scripts)
    return Response(state.api_pages[scripts], media_type="text/html", headers=headers)


def api_page(document: Node, script: str = "") -> str:
    """The whole page of an OpenAPI document; ``script`` is the URL of what sends the examples."""
    info = document["info"]
    title = f"{info['title']} {info['version']}"
    parts = [
        *('<nav aria-label="Pages">', '<a href="/">Server</a>', "</nav>"),
        *("<main>", f"<h1>{escape(title)}</h1>"),
        f"<p>{escape(info.get('summary', ''))} This page is made of",
        '<a href="/openapi.json">/openapi.json</a>.</p>',
        *_contents_list(document),
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts += _operation(path, method, operation)
    for name, schema in document["components"]["schemas"].items():
        parts += [f'<h2 id="{escape(name)}"><code>{escape(name)}</code></h2>', *_schema(schema)]
    up = '<a class="up" href="#contents">Contents</a>'
    return whole_page(title, [*parts, up, "</main>"], script=script)


def _contents_list(document: Node) -> list[str]:
    """Links to every route and every schema."""
    routes = [
        (_anchor(path, method), f"{method.upper()} {path}")
        for path, operations in document["paths"].items()
        for method in operations
    ]
    schemas = [(name, name) for name in document["components"]["schemas"]]
    lines = ['<h2 id="contents">Contents</h2>']
    for heading, entries in (("Routes", routes), ("Bodies and answers", schemas)):
        items = (
            f'<li><a href="#{escape(anchor)}">{escape(text)}</a></li>' for anchor, text in entries
        )
        lines += [f"<h3>{heading}</h3>", '<ul class="contents">', *items, "</ul>"]
    return lines


def _anchor(path: str, method: str) -> str:
    return f"{method}-{path.strip('/').replace('/', '-')}"


def _operation(path: str, method: str, operation: Node) -> list[str]:
    parts = [
        f'<h2 id="{escape(_anchor(path, method))}">',
        f"<code>{escape(method.upper())} {escape(path)}</code></h2>",
        f"<p>{_text(operation)}</p>",
    ]
    headers = (
        (f"<code>{escape(parameter['name'])}</code>", _type(parameter["schema"]), _text(parameter))
        for parameter in operation.get("parameters", [])
    )
    if table := _table(("header", "value", "what"), headers):
        parts += _folded("Headers", table)
    example = ""
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        body = f"<code>{escape(media_type)}</code>: {_type(content['schema'])}"
        parts += ["<h3>Body</h3>", f"<p>{body}</p>"]
        if "example" in content:
            example = orjson.dumps(content["example"], option=orjson.OPT_INDENT_2).decode()
    parts += _example(path, method, example)
    answers = (
        (escape(status), _contents(response), _text(response))
        for status, response in sorted(operation["responses"].items())
    )
    return [*parts, *_folded("Answers", _table(("status", "body", "what"), answers))]


def _folded(heading: str, lines: list[str]) -> list[str]:
    """What is long and seldom read: a heading that opens it."""
    return ["<details>", f"<summary>{heading}</summary>", *lines, "</details>"]


def _example(path: str, method: str, body: str) -> list[str]:
    """What the script turns into a form; without it an example to read."""
    opening = f'<details data-method="{escape(method)}" data-path="{escape(path)}">'
    parts = [opening, "<summary>Example</summary>"]
    if body:
        label = f"Body of {method.upper()} {path}"
        parts.append(
            f'<textarea rows="{body.count(chr(10)) + 1}" aria-label="{escape(label)}"'
            f' spellcheck="false">{escape(body)}</textarea>'
        )
    return [*parts, "</details>"] if body or method == "get" else []


def _contents(response: Node) -> str:
    contents = response.get("content", {}).items()
    return "<br>".join(
        f"<code>{escape(media_type)}</code> {_type(content.get('schema', {}))}"
        for media_type, content in contents
    )


def _schema(schema: Node) -> list[str]:
    required = schema.get("required", [])
    fields = (
        (
            f"<code>{escape(name)}</code>",
            _type(field),
            "required" if name in required else _default(field),
            _text(field),
        )
        for name, field in schema.get("properties", {}).items()
    )
    return [f"<p>{_text(schema)}</p>", *_table(("field", "type", "default", "what"), fields)]


def _default(field: Node) -> str:
    default = field.get("default")
    return "" if default is None else f"<code>{escape(str(default))}</code>"


def _type(schema: Node) -> str:
    """What a value may be, in words, with links to the schemas that have a name."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    for choice in ("oneOf", "anyOf"):
        if choice in schema:
            return " or ".join(dict.fromkeys(map(_type, schema[choice])))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum") or [schema["const"]]
        return ", ".join(f"<code>{escape(str(value))}</code>" for value in values)
    if schema.get("type") == "array":
        return f"list of ({_type(schema.get('items', {}))})"
    return escape(schema.get("type", "any"))


def _text(node: Node) -> str:
    """A description in HTML; what stands between two backticks, as in CommonMark, is code."""
    text = escape(node.get("description") or node.get("summary") or "")
    return _CODE.sub(r"<code>\1</code>", text)


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """A table of cells that are HTML already; nothing where there are no rows."""
    lines = [f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows]
    head = f"<tr><th>{'</th><th>'.join(heads)}</th></tr>"
    return ["<table>", head, *lines, "</table>"] if lines else []

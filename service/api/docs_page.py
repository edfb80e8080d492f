"""The routes /, /docs and /openapi.json, and the HTML page that shows the OpenAPI document.

The page needs no script, font or file from elsewhere, so it works offline. Every text is escaped,
and the page's Content-Security-Policy lets a browser run no script and load nothing.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from service.api.responses import JSON
from service.api.routing import RequestRoute

router = APIRouter(include_in_schema=False, route_class=RequestRoute)

Node = Mapping[str, Any]

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff }
h2 { margin: 2.5rem 0 0; border-top: 1px solid #ccc; padding-top: 1rem; font-size: 1.2rem }
h3 { margin: 1rem 0 .25rem; font-size: 1rem }
code { font-family: ui-monospace, monospace; font-size: .9em }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0;
         border-bottom: 1px solid #eee }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #181818 } a { color: #8bf }
  h2 { border-color: #444 } td, th { border-color: #333 }
}
"""
STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

PAGE_HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


_READING = ["GET", "HEAD"]


@router.api_route("/", methods=_READING)
async def root(_request: Request) -> Response:
    """Where to find the documentation."""
    content = b'{"name":"s2sent","docs":"/docs","info":"/info"}'
    return Response(content, media_type=JSON, headers=PAGE_HEADERS)


@router.api_route("/docs", methods=_READING)
async def docs(request: Request) -> Response:
    """The OpenAPI document as a page for people."""
    state = request.app.state
    if not hasattr(state, "api_page"):  # rendered once, at the first request
        state.api_page = api_page(request.app.openapi())
    return Response(state.api_page, media_type="text/html", headers=PAGE_HEADERS)


@router.api_route("/openapi.json", methods=_READING)
async def openapi(request: Request) -> Response:
    """The OpenAPI document as JSON."""
    content = orjson.dumps(request.app.openapi())
    return Response(content, media_type=JSON, headers=PAGE_HEADERS)


def api_page(document: Node) -> str:
    """The whole page of an OpenAPI document."""
    info = document["info"]
    title = escape(f"{info['title']} {info['version']}")
    parts = [
        *("<!doctype html>", '<html lang="en">', '<meta charset="utf-8">'),
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        *(f"<title>{title}</title>", f"<style>{STYLE}</style>", f"<h1>{title}</h1>"),
        f"<p>{escape(info.get('summary', ''))} This page is made of",
        '<a href="/openapi.json">/openapi.json</a>.</p>',
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts += _operation(path, method, operation)
    for name, schema in document["components"]["schemas"].items():
        parts += [f'<h2 id="{escape(name)}"><code>{escape(name)}</code></h2>', *_schema(schema)]
    return "\n".join(parts)


def _operation(path: str, method: str, operation: Node) -> list[str]:
    parts = [
        f"<h2><code>{escape(method.upper())} {escape(path)}</code></h2>",
        f"<p>{_text(operation)}</p>",
    ]
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        body = f"<code>{escape(media_type)}</code>: {_type(content['schema'])}"
        parts += ["<h3>Body</h3>", f"<p>{body}</p>"]
    answers = (
        (escape(status), _contents(response), _text(response))
        for status, response in sorted(operation["responses"].items())
    )
    return [*parts, "<h3>Answers</h3>", *_table(("status", "body", ""), answers)]


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
    return [f"<p>{_text(schema)}</p>", *_table(("field", "type", "default", ""), fields)]


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
    return escape(node.get("description") or node.get("summary") or "")


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """A table of cells that are HTML already; nothing where there are no rows."""
    lines = [f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows]
    head = f"<tr><th>{'</th><th>'.join(heads)}</th></tr>"
    return ["<table>", head, *lines, "</table>"] if lines else []

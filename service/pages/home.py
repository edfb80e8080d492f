"""The route GET /: what this server is, for people as a page, for programs as JSON."""

from collections.abc import Iterable
from html import escape

from fastapi import APIRouter, Request, Response

from s2sent.model.artifact.facts import Facts, facts_of, scores_of
from s2sent.service.api.embedding import Service, service_of
from s2sent.service.api.responses import JSON
from s2sent.service.errors import NotReady
from s2sent.service.pages.html import page_headers, whole_page
from s2sent.service.telemetry.metrics import Metrics, package_version

router = APIRouter(include_in_schema=False)

HTML = "text/html"
READING = ["GET", "HEAD"]


@router.api_route("/", methods=READING)
async def home(request: Request) -> Response:
    """A page where Accept names text/html, as browsers do; otherwise where to look further."""
    headers = page_headers() | {"Vary": "Accept"}
    if HTML not in request.headers.get("accept", ""):
        content = b'{"name":"s2sent","docs":"/docs","info":"/info"}'
        return Response(content, media_type=JSON, headers=headers)
    page = home_page(service_of(request), str(request.base_url))
    return Response(page, media_type=HTML, headers=headers)


def home_page(service: Service, url: str) -> str:
    """The start page of the server at ``url``. With keys it tells nothing of model and use."""
    settings = service.settings
    links = [
        *([("playground", "Playground")] if settings.serves_playground else []),
        *(("docs", "API reference"), ("openapi.json", "OpenAPI"), ("metrics", "Metrics")),
    ]
    tables: list[str] = []
    if not settings.requires_key:
        for heading, facts in _facts(service).items():
            tables += ["<section>", f"<h2>{escape(heading)}</h2>", *_table(facts), "</section>"]
    body = [
        *("<main>", "<h1>S2Sent</h1>"),
        f'<p class="soft">Sentence embeddings and similarity over HTTP, version'
        f" {escape(package_version())}.</p>",
        "<nav>",
        *(f'<a href="{path}">{text}</a>' for path, text in links),
        *("</nav>", *_example(service, url), '<div class="facts">', *tables, "</div>", "</main>"),
    ]
    return whole_page("S2Sent", body)


def _example(service: Service, url: str) -> list[str]:
    """A command to copy, and where it needs a key, where that is given."""
    settings = service.settings
    key, told = "", ""
    if settings.requires_key:
        key = '-H "Authorization: Bearer $S2SENT_API_KEY" '
        where = "Give it in the playground, or in" if settings.serves_playground else "Give it in"
        told = f"<p>This server asks for an API key. {where} the header Authorization.</p>"
    body = """-H 'Content-Type: application/json' -d '{"inputs": "A man is playing a guitar."}'"""
    command = f"curl -s {url}embed {key}\\\n  {body}"
    return [told, f'<pre class="copy" tabindex="0" aria-label="Example">{escape(command)}</pre>']


def _facts(service: Service) -> dict[str, Facts]:
    """What is shown, by heading; while the model is loaded only the state of the server."""
    try:
        model = [("name", service.model_name), *facts_of(service.manifest)[1:]]
    except NotReady as error:
        return {"Server": [("state", error.message)]}
    quality = scores_of(service.manifest)
    headings = {"Model": model, "Server": _server_facts(service)}
    return headings | ({"Quality, Spearman × 100": quality} if quality else {})


def _server_facts(service: Service) -> Facts:
    readiness = service.engine.readiness()
    provider = service.engine.model.provider.removesuffix("ExecutionProvider")
    in_flight, waiting, embedded = (
        _total(service.metrics, f"s2sent_{name}")
        for name in ("requests_in_flight", "queue_texts", "texts_total")
    )
    return [
        ("state", "ready" if readiness.ready else readiness.reason),
        ("device", f"{provider}, {service.engine.threads} threads"),
        ("requests now", str(in_flight - 1)),  # this one is no load
        ("texts that wait", str(waiting)),
        ("texts embedded", f"{embedded:,}"),
    ]


def _total(metrics: Metrics, name: str) -> int:
    families = metrics.registry.restricted_registry([name]).collect()
    return int(sum(sample.value for family in families for sample in family.samples))


def _table(facts: Facts) -> Iterable[str]:
    rows = (
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in facts
    )
    return ["<table>", *rows, "</table>"]

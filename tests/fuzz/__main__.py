"""Asks every route of a real server for what its OpenAPI document allows, and for what it does not.

    python -m tests.fuzz [--cases 1500] [--seed 1] [--artifact FOLDER]     or: make fuzz

schemathesis makes the cases and checks each answer: no 5xx, a declared status, the declared media
type, headers and body, good data accepted, bad data refused. Ends with 1 when a check fails, when
there were fewer than 10,000 cases, or when the server no longer gives the vector it gave before.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.tokenizer import Tokenizer
from s2sent.service.settings import DEFAULT_ARTIFACT
from tests.support.server_process import running_server

HERE = Path(__file__).parent
SCHEMATHESIS = HERE.parents[1] / ".venv" / "fuzz" / "bin" / "schemathesis"
MIN_CASES = 10_000
KNOWN = {"inputs": "two happy dogs read books"}
# Routes that the document leaves out, and the route each stands for.
ALIASES = {"/": "/embed", "/embeddings": "/v1/embeddings", "/ping": "/health"}
ROOT = {"responses": {"200": {"description": "Where to go.", "content": {"application/json": {}}}}}
HOOKS = {"SCHEMATHESIS_HOOKS": "hooks"}  # hooks.py, imported in the other environment
OPTIONS = (
    *("--phases", "examples,coverage,fuzzing", "--checks", "all"),
    *("--exclude-checks", "ignored_auth"),  # the server has no keys, and the document allows none
    *("--continue-on-failure", "--generation-database", "none"),
    *("--request-timeout", "20", "--max-response-time", "10", "--no-color"),
)


def document_of(client: httpx.Client, artifact: Path) -> dict[str, Any]:
    """The server's document, with its aliases and with the limits of the model it serves.

    Which dimensions, prompts, depths and token ids there are depends on the model: /info and its
    tokenizer tell them.
    """
    document: dict[str, Any] = client.get("/openapi.json").json()
    for alias, path in ALIASES.items():
        method, operation = next(iter(document["paths"][path].items()))
        document["paths"].setdefault(alias, {})[method] = operation | {"operationId": alias}
    document["paths"]["/"]["get"] = ROOT
    info = client.get("/info").json()
    depths = {*info["depths"], info["full_depth"]}
    # Where only some can be compared, which ones are right depends on depth, and no schema says so.
    any_two = depths <= set(info["comparable_depths"])
    limits = {
        "dimensions": {"maximum": info["dim"]},
        "prompt_name": {"enum": [*info["prompts"], "", None]},
        "documents_prompt_name": {"enum": [*info["prompts"], "", None]},
        "depth": {"enum": [*sorted(depths), None]},
        "window_overlap": {"maximum": info["max_input_length"] // 2},
        "documents_depth": {"enum": [*(sorted(depths) if any_two else ()), None]},
    }
    for schema in document["components"]["schemas"].values():
        for name in limits.keys() & schema.get("properties", {}).keys():
            field = schema["properties"][name]
            field["anyOf"] = [kind | limits[name] for kind in field["anyOf"]]
    opened = Artifact.open(artifact)
    tokenizer = Tokenizer(opened.tokenizer_path, opened.manifest.max_seq_length)
    limit_token_ids(document["components"]["schemas"], tokenizer.vocab_size - 1)
    return document


def limit_token_ids(node: Any, largest: int) -> None:
    """Give every schema of a token id, an integer of at least 0, its largest value."""
    if isinstance(node, list):
        for one in node:
            limit_token_ids(one, largest)
    elif isinstance(node, dict):
        if node == {"type": "integer", "minimum": 0}:
            node["maximum"] = largest
        for one in node.values():
            limit_token_ids(one, largest)


def run_schemathesis(document: dict[str, Any], url: str, cases: int, seed: int) -> dict[str, Any]:
    """The report of a run; what it prints goes to our output."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "openapi.json").write_text(json.dumps(document), encoding="utf-8")
        report = ("--report", "json", "--report-json-path", "report.json")
        amount = ("--max-examples", str(cases), "--seed", str(seed), "--url", url)
        subprocess.run(
            [SCHEMATHESIS, "run", "openapi.json", *amount, *report, *OPTIONS],
            cwd=folder,
            env=os.environ
            | {"NO_PROXY": "*", "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HERE)},
            check=False,
        )
        content: dict[str, Any] = json.loads((Path(folder) / "report.json").read_text())
        return content


def answers_by_status(client: httpx.Client) -> Counter[str]:
    """How many requests the server itself says it has answered with each status."""
    counts: Counter[str] = Counter()
    for line in client.get("/metrics").text.splitlines():
        if found := re.match(r's2sent_requests_total\{.*status="(\d+)".*\} (\S+)', line):
            counts[found[1]] += int(float(found[2]))
    return counts


def main() -> int:
    """Start the server, run, and tell whether all held."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--cases", type=int, default=1500, help="the most for each route")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--artifact", type=Path, default=DEFAULT_ARTIFACT)
    arguments = parser.parse_args()
    with running_server(arguments.artifact, "--no-log-requests") as server:
        document = document_of(server.client, arguments.artifact)
        before = answers_by_status(server.client)
        known = server.client.post("/embed", json=KNOWN).content
        report = run_schemathesis(document, server.url, arguments.cases, arguments.seed)
        still_right = server.client.post("/embed", json=KNOWN).content == known
        statuses = answers_by_status(server.client) - before
    generated = report["test_cases"]["generated"]
    failures = report["test_cases"]["unique_failures"] + len(report["errors"])
    print(f"{generated} cases, {failures} failures, in {report['running_time']:.0f} s")
    print(f"answers by status: {dict(sorted(statuses.items()))}")
    print(f"the known vector afterwards: {'the same' if still_right else 'ANOTHER'}")
    served_errors = sum(count for status, count in statuses.items() if status >= "500")
    held = still_right and not failures and not served_errors and generated >= MIN_CASES
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())

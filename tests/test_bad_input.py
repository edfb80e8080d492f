"""Whatever a client sends, it gets its own error in its dialect, and the next request its vector.

Over real sockets against the real server. docs/reliability.md lists what is tried here.
"""

import gzip
import itertools
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pytest

from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import OnnxEncoder
from tests.support.exposition import settled
from tests.support.server_process import running_server
from tests.support.wire import JSON_TYPE, Answer, Wire, chunked, request

KNOWN = "two happy dogs read books"
GOOD = request(json.dumps({"inputs": KNOWN}).encode())
EMBED, SIMILARITY, OPENAI, TOKENIZE, DECODE = ROUTES = (
    *("/embed", "/similarity", "/v1/embeddings", "/tokenize", "/decode"),
)
ALL_ROUTES = (*ROUTES, "/", "/embeddings")
GETS = ("/info", "/health", "/ping", "/ready", "/metrics", "/v1/models", "/docs", "/openapi.json")
HUNDRED_MB = 100_000_000


class Server:
    """A server, and the vector it has to give for the known text."""

    def __init__(self, port: int, known: Any) -> None:
        self.port, self.known = port, known

    def wire(self) -> Wire:
        return Wire(self.port)

    def assert_serves(self, wire: Wire | None = None) -> None:
        """The next good answer is right, on the connection given or on a new one."""
        if wire is None:
            with self.wire() as wire:
                return self.assert_serves(wire)
        self.assert_known(wire.send(GOOD).answer())

    def assert_known(self, answer: Answer) -> None:
        assert answer.status == 200, answer
        np.testing.assert_allclose(answer.json(), [self.known], atol=1e-5)


@pytest.fixture(scope="module")
def known(tiny_artifact: Artifact) -> Any:
    return OnnxEncoder(tiny_artifact, intra_op_num_threads=1).encode([KNOWN])[0]


@contextmanager
def running(artifact: Artifact, known: Any, *flags: str) -> Iterator[Server]:
    with running_server(artifact.path, "--no-log-requests", *flags) as process:
        yield Server(urlsplit(process.url).port or 0, known)


@pytest.fixture(scope="module")
def server(each_form: None, tiny_artifact: Artifact, known: Any) -> Iterator[Server]:
    """One process, then several."""
    with running(tiny_artifact, known) as server:
        yield server


@pytest.fixture(scope="module")
def front(tiny_artifact: Artifact, known: Any) -> Iterator[Server]:
    """One process, for what is answered before the engine is asked: the same code in each form."""
    with running(tiny_artifact, known) as server:
        yield server


@pytest.fixture(scope="module")
def impatient(each_form: None, tiny_artifact: Artifact, known: Any) -> Iterator[Server]:
    with running(tiny_artifact, known, "--request-timeout-seconds", "0.5") as server:
        yield server


def assert_refused(answer: Answer, path: str, status: int, error_type: str) -> None:
    """The status and the envelope of the path's dialect, with one sentence in it."""
    openai = path.startswith("/v1") or path == "/embeddings"
    expected = {422: 400}.get(status, status) if openai else status
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    body = answer.json()
    if openai:
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        message, code = body["error"]["message"], body["error"]["code"]
    else:
        assert set(body) == {"error", "error_type"}
        message, code = body["error"], body["error_type"]
    assert (answer.status, code) == (expected, error_type), message
    assert message.endswith((".", ".)"))
    assert len(message) < 400


# --- bytes that are not JSON, on every route that takes a body ---

NOT_JSON = {
    "nothing": b"",
    "spaces": b" \n ",
    "half an object": b'{"inputs": "a"',
    "two objects": b'{"inputs": "a"}{"inputs": "b"}',
    "data after the object": b'{"inputs": "a"} x',
    "a comma too many": b'{"inputs": ["a",]}',
    "single quotes": b"{'inputs': 'a'}",
    "a comment": b'{"inputs": "a"} // x',
    "NaN": b'{"inputs": "a", "dimensions": NaN}',
    "Infinity": b'{"inputs": "a", "dimensions": -Infinity}',
    "1e999": b'{"inputs": "a", "dimensions": 1e999}',
    "a number of a million digits": b'{"inputs": "a", "dimensions": ' + b"1" * 1_000_000 + b"}",
    "a leading zero": b'{"inputs": [01]}',
    "broken UTF-8": b'{"inputs": "\xff\xfe"}',
    "cut UTF-8": b'{"inputs": "\xe2\x82"}',
    "overlong UTF-8": b'{"inputs": "\xc0\xaf"}',
    "a surrogate in UTF-8": b'{"inputs": "\xed\xa0\x80"}',
    "a lone surrogate": rb'{"inputs": "\ud800"}',
    "surrogates the wrong way round": rb'{"inputs": "\udc00\ud800"}',
    "half an escape": rb'{"inputs": "\u12"}',
    "an unknown escape": rb'{"inputs": "\x41"}',
    "a bare NUL": b'{"inputs": "a\x00b"}',
    "a bare line break": b'{"inputs": "a\nb"}',
    "a byte order mark": b'\xef\xbb\xbf{"inputs": "a"}',
    "UTF-16": '{"inputs": "a"}'.encode("utf-16"),
    "UTF-32": '{"inputs": "a"}'.encode("utf-32"),
    "2,000 brackets": b'{"inputs": ' + b"[" * 2_000 + b"]" * 2_000 + b"}",
    "2,000 braces": b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
    "a form": b"inputs=a&truncate=true",
    "random bytes": bytes(range(256)) * 8,
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_what_is_not_json_is_malformed(front: Server, name: str) -> None:
    with front.wire() as wire:
        for path in ALL_ROUTES:
            answer = wire.send(request(NOT_JSON[name], path.encode())).answer()
            assert_refused(answer, path, 400, "Malformed")
        front.assert_serves(wire)


@pytest.mark.parametrize("body", ["1", '"a"', "[]", "null", "true", "[1]", '["inputs"]'])
def test_json_that_is_no_object_is_invalid(front: Server, body: str) -> None:
    with front.wire() as wire:
        for path in ALL_ROUTES:
            answer = wire.send(request(body.encode(), path.encode())).answer()
            assert_refused(answer, path, 422, "Validation")
        front.assert_serves(wire)


# --- JSON that means nothing that can be done ---


class Bad(NamedTuple):
    """Bodies for a route, and the error that each of them gets."""

    path: str
    bodies: list[Any]
    status: int
    error_type: str


INVALID, EMPTY, TOO_MUCH = (422, "Validation"), (400, "Empty"), (413, "PayloadTooLarge")


def _bad(error: tuple[int, str], path: str, *bodies: Any) -> Bad:
    return Bad(path, [*bodies], *error)


def _field(error: tuple[int, str], path: str, name: str, *values: Any, **others: Any) -> Bad:
    return _bad(error, path, *({**others, name: value} for value in values))


BAD_DIMENSIONS: tuple[Any, ...] = (0, -1, 33, 2**31, 2**63, 1.5, 1.0, "3", True, [], {})
BAD_IDS: tuple[Any, ...] = (
    *([-1], [1, -1], [[5, -(2**63)]], [10**6], [2**63], [2**64], [[10**30]], [1.0], [[1.5]]),
    *([[True]], [[None]], [["a"]], [[[1]]], [1, "a"], ["a", 1], [None]),
)

BAD_BODIES = [
    _field(INVALID, EMBED, "dimensions", *BAD_DIMENSIONS, inputs="a"),
    _field(INVALID, EMBED, "depth", 0, 1, 99, 2**64, 1.5, "2", inputs="a"),
    _field(INVALID, EMBED, "truncate", "yes", 1, [], {}, inputs="a"),
    _field(INVALID, EMBED, "normalize", "no", 0, 1.0, inputs="a"),
    _field(INVALID, EMBED, "truncation_direction", "middle", 1, inputs="a"),
    _field(INVALID, EMBED, "prompt_name", "nobody", "\0" * 500, 1, inputs="a"),
    _field(INVALID, EMBED, "inputs", "a " * 500, truncate=False),
    _bad(INVALID, EMBED, {}, {"Inputs": "a"}),
    _field(INVALID, EMBED, "inputs", None, 1, 1.5, True, {}, {"a": 1}, *BAD_IDS),
    _field(EMPTY, EMBED, "inputs", "", [], [""], ["a", ""], [[]], [[1], []]),
    _field(TOO_MUCH, EMBED, "inputs", ["a"] * 2049, [[5]] * 2049),
    _field(INVALID, OPENAI, "dimensions", *BAD_DIMENSIONS, input="a"),
    _bad(INVALID, OPENAI, {}, {"inputs": "a"}),
    _field(INVALID, OPENAI, "input", None, 1, True, {}, [1], [[1]], ["a", 1]),
    _field(INVALID, OPENAI, "encoding_format", "int4", 1, input="a"),
    _field(INVALID, OPENAI, "on_error", "skip", 1, True, input="a"),
    _field(INVALID, OPENAI, "details", "yes", 1, input="a"),
    _field(INVALID, OPENAI, "prompt_name", "nobody", 1, input="a"),
    _field(INVALID, EMBED, "encoding", "int4", 1, [], inputs="a"),
    _field(INVALID, EMBED, "encoding", "int8", inputs="a", normalize=False),
    _field(INVALID, EMBED, "on_error", "skip", 1, True, inputs="a"),
    _field(INVALID, EMBED, "details", "yes", 1, inputs="a"),
    _field(INVALID, EMBED, "inputs", [1.5], [None], {}, on_error="null"),
    _field(EMPTY, EMBED, "inputs", [], on_error="null"),
    _field(TOO_MUCH, EMBED, "inputs", [""] * 2049, on_error="null"),
    _field(INVALID, "/embeddings", "model", 1, [], input="a"),
    _field(EMPTY, OPENAI, "input", "", [], ["a", ""]),
    _field(TOO_MUCH, OPENAI, "input", ["a"] * 2049),
    _field(INVALID, SIMILARITY, "inputs", None, 1, "a", [], {}),
    _field(
        INVALID,
        SIMILARITY,
        "parameters",
        {"documents_depth": 0},
        {"documents_depth": 99},
        {"depth": 99},
        inputs={"pairs": [["a", "b"]]},
    ),
    _field(
        INVALID,
        SIMILARITY,
        "inputs",
        {"source_sentence": "a"},
        {"sentences": ["a"]},
        {"source_sentence": "a", "sentences": "b"},
        {"source_sentence": 1, "sentences": ["a"]},
        *({"pairs": pairs} for pairs in (["ab"], [["a"]], [["a", "b", "c"]], [[1, 2]])),
        {"queries": "a", "documents": ["b"]},
        *({"queries": ["a"], "documents": ["b"], "top_k": k} for k in (0, 2**63, 1.5, "1")),
    ),
    _field(
        EMPTY,
        SIMILARITY,
        "inputs",
        {"source_sentence": "", "sentences": ["a"]},
        {"source_sentence": "a", "sentences": []},
        {"pairs": []},
        {"pairs": [["a", ""]]},
        {"queries": [], "documents": ["a"]},
    ),
    _field(
        TOO_MUCH,
        SIMILARITY,
        "inputs",
        {"source_sentence": "a", "sentences": ["b"] * 2048},
        {"pairs": [["a", "b"]] * 1025},
        {"queries": ["a"] * 1024, "documents": ["b"] * 1025},
    ),
    _field(INVALID, TOKENIZE, "inputs", None, 1, [1], [["a"]], {}),
    _field(INVALID, TOKENIZE, "add_special_tokens", 1, "no", inputs="a"),
    _field(EMPTY, TOKENIZE, "inputs", "", [], ["a", ""]),
    _field(TOO_MUCH, TOKENIZE, "inputs", ["a"] * 2049, "a" * 262_145),
    _field(INVALID, DECODE, "ids", None, 1, "a", ["a"], *BAD_IDS, [[1], 1], [1, [1]]),
    _field(INVALID, DECODE, "skip_special_tokens", 1, "no", ids=[1]),
    _field(EMPTY, DECODE, "ids", [], [[]], [[1], []]),
    _field(TOO_MUCH, DECODE, "ids", [[5]] * 2049, [5] * 262_145),
]


@pytest.mark.parametrize(
    "bad", BAD_BODIES, ids=lambda bad: f"{bad.path} {json.dumps(bad.bodies[0])[:60]}"
)
def test_json_that_cannot_be_done_says_why(server: Server, bad: Bad) -> None:
    with server.wire() as wire:
        for body in bad.bodies:
            answer = wire.send(request(json.dumps(body).encode(), bad.path.encode())).answer()
            assert_refused(answer, bad.path, bad.status, bad.error_type)
        server.assert_serves(wire)


# --- odd JSON that means something ---

STRANGE_TEXTS = {
    "NUL": "two\0dogs",
    "right to left": "\u202eשלום עולם مرحبا\u202c",
    "zero width": "d\u200bo\u200cg\u200d\ufeff",
    "nothing but zero width": "\u200b\u200d",
    "nothing but spaces": " \t\n\u3000",
    "combining": "e" + "\u0301" * 1000,
    "emoji": "👩‍👩‍👧‍👦" * 10,
    "noncharacters": "\ufffe\uffff\U0010ffff",
    "control characters": "".join(map(chr, range(32))),
    "a word of 1 MB": "a" * 1_000_000,
    "a word of 1 MB, three bytes a letter": "語" * 350_000,
}


@pytest.mark.parametrize("name", STRANGE_TEXTS)
def test_strange_texts_are_texts(server: Server, name: str) -> None:
    text = STRANGE_TEXTS[name]
    with server.wire() as wire:
        for ascii in (True, False):
            body = json.dumps({"inputs": [KNOWN, text]}, ensure_ascii=ascii).encode()
            answer = wire.send(request(body)).answer()
            assert answer.status == 200, answer
            np.testing.assert_allclose(answer.json()[0], server.known, atol=1e-5)
            assert np.isfinite(np.array(answer.json()[1])).all()
        server.assert_serves(wire)


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs": 1, "inputs": "%b"}',
        b'{"inputs": "%b", "": {"": [[], {}]}, "inputs ": 3, "truncate": null}',
        b' \r\n\t{"inputs":\n"%b"}\n',
        b'{"inputs": ["%b"], "other": ' + b"[" * 1_000 + b"]" * 1_000 + b"}",
    ],
    ids=["the last of two equal keys counts", "unknown fields", "white space", "deep and ignored"],
)
def test_odd_json_is_read_as_json_says(front: Server, body: bytes) -> None:
    with front.wire() as wire:
        front.assert_known(wire.send(request(body % KNOWN.encode())).answer())


def test_as_many_and_as_long_texts_as_allowed_are_embedded(server: Server) -> None:
    texts = ["[" * 3_000, '"' * 500 + "\\" * 400, *["a" * 4_000] * 2045, KNOWN]
    with server.wire() as wire:
        answer = wire.send(request(json.dumps({"inputs": texts}).encode())).answer()
        assert answer.status == 200, answer
        assert len(answer.json()) == 2048
        np.testing.assert_allclose(answer.json()[-1], server.known, atol=1e-5)


# --- bodies that are too large, or not what they say ---


def _of_8_mb(item: bytes, before: bytes) -> bytes:
    return before + b",".join(itertools.repeat(item, 8_000_000 // (len(item) + 1))) + b"]}"


@pytest.mark.parametrize(
    ("path", "item", "before"),
    [
        (EMBED, b"[1]", b'{"inputs":['),
        (EMBED, b'"a"', b'{"inputs":['),
        (EMBED, b"1", b'{"inputs":['),
        (EMBED, b"[[]]", b'{"inputs":"a","other":['),
        (SIMILARITY, b'["a","b"]', b'{"inputs":{"pairs":['),
        (OPENAI, b"{}", b'{"input":['),
        (TOKENIZE, b'""', b'{"inputs":['),
        (DECODE, b"[]", b'{"ids":['),
        (EMBED, b"[" * 50_000 + b"]" * 50_000, b'{"inputs":['),
    ],
)
def test_millions_of_small_things_are_refused(
    front: Server, path: str, item: bytes, before: bytes
) -> None:
    with front.wire() as wire:
        answer = wire.send(request(_of_8_mb(item, before), path.encode())).answer()
        assert_refused(answer, path, 413, "PayloadTooLarge")
        front.assert_serves(wire)


@pytest.mark.parametrize("path", [EMBED, OPENAI])
def test_100_mb_are_refused_and_the_connection_goes_on(front: Server, path: str) -> None:
    body = b" " * HUNDRED_MB
    for sent in (request(body, path.encode()), chunked(body, path.encode())):
        with front.wire() as wire:
            assert_refused(wire.send(sent).answer(), path, 413, "PayloadTooLarge")
            front.assert_serves(wire)


def test_a_body_said_to_be_of_100_mb_is_not_waited_for(front: Server) -> None:
    with front.wire() as wire:
        answer = wire.send(request(b'{"inputs": "a"}', length=HUNDRED_MB)).answer()
        assert_refused(answer, EMBED, 413, "PayloadTooLarge")
    front.assert_serves()


def test_a_body_longer_than_it_says_ends_the_connection(front: Server) -> None:
    body = b'{"inputs": "%b"}' % KNOWN.encode()
    with front.wire() as wire:
        front.assert_known(wire.send(request(body + b"more of it", length=len(body))).answer())
        assert wire.is_closed()
    front.assert_serves()


def test_a_body_shorter_than_it_says_is_given_up_with_the_connection(front: Server) -> None:
    with front.wire() as wire:
        wire.send(request(b'{"inputs": "a"}', length=100))
    front.assert_serves()


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x"])
def test_compressed_bodies_are_refused_unread(front: Server, coding: str) -> None:
    bomb = gzip.compress(b'{"inputs": "' + b"a" * 10_000_000 + b'"}')
    fields = JSON_TYPE + f"Content-Encoding: {coding}\r\n".encode()
    with front.wire() as wire:
        for path in ALL_ROUTES:
            answer = wire.send(request(bomb, path.encode(), fields=fields)).answer()
            assert_refused(answer, path, 415, "UnsupportedMediaType")
        front.assert_serves(wire)


@pytest.mark.parametrize(
    "fields",
    [
        *(b"", b"Content-Type:\r\n", b"Content-Type: text/plain\r\n", b"Content-Type: json\r\n"),
        *(b"Content-Type: application/x-www-form-urlencoded\r\n", b"Content-Type: */*\r\n"),
        *(b"Content-Type: multipart/form-data; boundary=x\r\n", b"Content-Type: \xff\xfe\r\n"),
        b"Content-Type: text/plain; application/json\r\n",
    ],
)
def test_other_media_types_are_refused(front: Server, fields: bytes) -> None:
    with front.wire() as wire:
        for path in ALL_ROUTES:
            answer = wire.send(request(b'{"inputs": "a"}', path.encode(), fields=fields)).answer()
            assert_refused(answer, path, 415, "UnsupportedMediaType")
        front.assert_serves(wire)


# --- paths, methods and headers ---


@pytest.mark.parametrize(
    "path",
    [
        *("/nothing", "//embed", "/embed/", "/EMBED", "/x/../embed", "/../../etc/passwd"),
        *("/%2e%2e/embed", "/embed%2f", "/embed%00", "/%ff%fe", "/%0d%0aX-Evil:%201", "/embed;a=1"),
        *("/v1", "/v1/", "/v1/nothing", "/v1/../embed", "/v1/embeddings/", "/" + "a" * 60_000),
    ],
)
def test_other_paths_are_not_found(front: Server, path: str) -> None:
    with front.wire() as wire:
        answer = wire.send(request(b'{"inputs": "a"}', path.encode())).answer()
        assert_refused(answer, path, 404, "NotFound")
        front.assert_serves(wire)


@pytest.mark.parametrize("path", ["/embed?inputs=a", "/embed?", "/%65mbed", "http://other/embed"])
def test_other_names_of_a_route_are_the_route(front: Server, path: str) -> None:
    with front.wire() as wire:
        body = json.dumps({"inputs": KNOWN}).encode()
        front.assert_known(wire.send(request(body, path.encode())).answer())


METHODS = ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "PROPFIND")


@pytest.mark.parametrize("method", METHODS)
def test_other_methods_of_a_route_are_refused_with_those_it_has(front: Server, method: str) -> None:
    with front.wire() as wire:
        for path in (path for path in ALL_ROUTES if path != "/"):
            wire.send(request(path=path.encode(), method=method.encode()))
            answer = wire.answer(to_head=method == "HEAD")
            assert (answer.status, answer.headers["allow"]) == (405, "POST"), path
            if method != "HEAD":
                assert_refused(answer, path, 405, "MethodNotAllowed")
        front.assert_serves(wire)


@pytest.mark.parametrize("path", [*GETS, "/"])
def test_head_is_get_without_content(front: Server, path: str) -> None:
    with front.wire() as wire:
        get = wire.send(request(path=path.encode(), method=b"GET")).answer()
        head = wire.send(request(path=path.encode(), method=b"HEAD")).answer(to_head=True)
        assert get.status == head.status == 200
        assert get.headers.keys() == head.headers.keys()
        put = wire.send(request(path=path.encode(), method=b"PUT")).answer()
        allowed = "GET, HEAD, POST" if path == "/" else "GET, HEAD"
        assert (put.status, put.headers["allow"]) == (405, allowed)
        front.assert_serves(wire)


@pytest.mark.parametrize(
    "given",
    [
        *(b"", b"two words", b"a" * 129, b'a"b', b"a\tb", b"\xe2\x80\xaeabc", b"<script>"),
        *(b"a;b", b"a,b", b"%0d%0a", b"../../x", b"\xff"),
    ],
)
def test_an_odd_request_id_is_replaced_or_plain(front: Server, given: bytes) -> None:
    with front.wire() as wire:
        fields = JSON_TYPE + b"X-Request-Id: %b\r\n" % given
        answer = wire.send(request(b'{"inputs": "a"}', fields=fields)).answer()
        assert answer.status == 200
        answered = answer.headers["x-request-id"]
        assert answered == given.decode("latin-1") == "../../x" or len(answered) == 32
        front.assert_serves(wire)


@pytest.mark.parametrize(
    "fields",
    [
        b"".join(b"X-%d: a\r\n" % number for number in range(1_000)),
        b"X-Long: " + b"a" * 60_000 + b"\r\n",
        b"Accept: \xff\xfe\r\nAuthorization: \xff\r\n",
        b"Content-Type: application/json; charset=\xff\r\n",
        b"Accept: " + b"*/*;q=0.1," * 5_000 + b"\r\n",
    ],
    ids=["many", "long", "not ASCII", "an odd charset", "a long Accept"],
)
def test_many_and_long_headers_within_the_limit_are_taken(front: Server, fields: bytes) -> None:
    with front.wire() as wire:
        body = json.dumps({"inputs": KNOWN}).encode()
        front.assert_known(wire.send(request(body, fields=fields + JSON_TYPE)).answer())
        front.assert_serves(wire)


@pytest.mark.parametrize("path", [EMBED, OPENAI])
@pytest.mark.parametrize(
    "fields",
    [
        b"a: b\r\n" * 11_000,  # 22,000 bytes of names and values
        b"".join(b"X-%d: a\r\n" % number for number in range(20_000)),
        b"".join(b"X-%d: a\r\n" % number for number in range(200_000)),
        b"X-Long: " + b"a" * 70_000 + b"\r\n",
        b"X-Long: " + b"a" * 10_000_000 + b"\r\n",
    ],
    ids=["11,000 short", "20,000", "200,000", "70 kB", "10 MB"],
)
def test_a_flood_of_headers_is_refused(front: Server, fields: bytes, path: str) -> None:
    with front.wire() as wire:
        answer = wire.send(request(b'{"inputs": "a"}', path.encode(), fields=fields)).answer()
        assert_refused(answer, path, 431, "HeadTooLarge")
    front.assert_serves()


# --- bytes that are not HTTP ---

BODY = b'{"inputs": "a"}'
NOT_HTTP = {
    "random bytes": bytes(range(1, 256)) * 4,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/2.0 in a request": request(BODY, version=b"HTTP/2.0"),
    "HTTP/0.9": request(BODY, version=b"HTTP/0.9"),
    "HTTP/9.9": request(BODY, version=b"HTTP/9.9"),
    "an unknown method": request(BODY, method=b"FETCH"),
    "CONNECT": b"CONNECT test:80 HTTP/1.1\r\nHost: test\r\n\r\n",
    "a space in the path": request(BODY, b"/em bed"),
    "a path beyond ASCII": request(BODY, "/é".encode()),
    "two lengths": request(BODY, fields=JSON_TYPE + b"Content-Length: 3\r\n"),
    "two equal lengths": request(BODY, fields=JSON_TYPE + b"Content-Length: 15\r\n"),
    "a length and chunks": request(BODY, fields=JSON_TYPE + b"Transfer-Encoding: chunked\r\n"),
    "two hosts": request(BODY, fields=JSON_TYPE + b"host: other\r\n"),
    "a negative length": request(BODY, length=-1),
    "a huge length": request(BODY, length=10**30),
    "broken chunks": chunked(BODY).replace(b"f\r\n", b"z\r\n"),
    "a chunk without end": chunked(BODY).replace(b"}\r\n0\r\n\r\n", b"}0\r\n\r\n"),
    "another transfer coding": request(BODY, fields=b"Transfer-Encoding: gzip\r\n"),
    "a line break in a header": request(BODY, fields=JSON_TYPE + b"X-Request-Id: a\rb\r\n"),
    "a header that injects another": request(BODY, fields=b"X-Request-Id: a\r\n\x00X: b\r\n"),
    "NUL in a header": request(BODY, fields=JSON_TYPE + b"X-Request-Id: a\0b\r\n"),
    "a folded header": request(BODY, fields=JSON_TYPE + b"X-A: a\r\n b\r\n"),
    "a space before the colon": request(BODY, fields=b"Content-Type : application/json\r\n"),
    "bare line feeds": request(BODY).replace(b"\r\n", b"\n"),
}


@pytest.mark.parametrize("name", NOT_HTTP)
def test_what_is_not_http_is_refused_in_the_native_envelope(front: Server, name: str) -> None:
    with front.wire() as wire:
        answer = wire.send(NOT_HTTP[name]).answer()
        assert_refused(answer, EMBED, 400, "Malformed")
        assert answer.headers["connection"] == "close"
        assert wire.is_closed()
    front.assert_serves()


def test_what_is_refused_before_it_is_a_request_is_counted(server: Server) -> None:
    """Under no route, so that somebody who scans or floods is seen."""
    too_long = request(BODY, fields=b"X: " + b"a" * 70_000 + b"\r\n")
    refused = {400: b"EHLO test\r\n\r\n", 431: too_long}
    before = settled(lambda: [counted(server, status) for status in refused])
    for status, sent in refused.items():
        with server.wire() as wire:
            assert wire.send(sent).answer().status == status
    after = settled(lambda: [counted(server, status) for status in refused])
    assert after == [count + 1 for count in before]


def counted(server: Server, status: int) -> float:
    """Answers with a status and without a route, by the server's metrics."""
    name = f's2sent_requests_total{{route="other",status="{status}"}} '
    with server.wire() as wire:
        exposition = wire.send(request(path=b"/metrics", method=b"GET")).answer().content.decode()
    return float(exposition.partition(name)[2].split()[0]) if name in exposition else 0.0


def test_a_post_without_a_length_has_no_body(front: Server) -> None:
    head = b"POST /embed HTTP/1.1\r\nHost: test\r\n" + JSON_TYPE + b"\r\n"
    with front.wire() as wire:
        assert_refused(wire.send(head).answer(), EMBED, 400, "Malformed")
        front.assert_serves(wire)


def test_http_1_0_is_answered_and_closed(front: Server) -> None:
    body = json.dumps({"inputs": KNOWN}).encode()
    with front.wire() as wire:
        front.assert_known(wire.send(request(body, version=b"HTTP/1.0")).answer())
        assert wire.is_closed()


def test_a_request_without_host_is_answered(front: Server) -> None:
    with front.wire() as wire:
        front.assert_known(wire.send(GOOD.replace(b"Host: test\r\n", b"")).answer())


# --- slow, eager and absent clients ---


def test_a_body_that_drips_is_given_up(impatient: Server) -> None:
    """A byte at a time until the answer is there; the rest of it is then thrown away."""
    body = json.dumps({"inputs": "a" * 10_000}).encode()
    with impatient.wire() as wire:
        wire.send(request(length=len(body)))
        sent = 0
        while not wire.answers_within(0.02):
            wire.send(body[sent : sent + 1])
            sent += 1
        assert_refused(wire.answer(), EMBED, 504, "Timeout")
        impatient.assert_serves(wire.send(body[sent:]))


def test_many_bodies_that_drip_keep_nobody_waiting(impatient: Server) -> None:
    wires = [impatient.wire() for _ in range(50)]
    for wire in wires:
        wire.send(request(b'{"in', length=100))
    impatient.assert_serves()
    for wire in wires:
        assert_refused(wire.answer(), EMBED, 504, "Timeout")
        wire.socket.close()


def test_a_request_in_single_bytes_is_a_request(front: Server) -> None:
    with front.wire() as wire:
        front.assert_known(wire.send(*(bytes([byte]) for byte in GOOD)).answer())
        front.assert_serves(wire)


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    bad, lost = request(b"{"), request(b"{}", b"/v1/nothing")
    with server.wire() as wire:
        wire.send(GOOD + bad + GOOD + lost + GOOD * 20 + b"\r\n" + GOOD)
        server.assert_known(wire.answer())
        assert_refused(wire.answer(), EMBED, 400, "Malformed")
        server.assert_known(wire.answer())
        assert_refused(wire.answer(), "/v1", 404, "NotFound")
        for _ in range(21):
            server.assert_known(wire.answer())


def test_what_follows_a_request_does_not_cost_it_its_answer(front: Server) -> None:
    with front.wire() as wire:
        front.assert_known(wire.send(GOOD + b"\x00garbage\r\n\r\n").answer())
        assert wire.is_closed()
    front.assert_serves()


@pytest.mark.parametrize("sent", [GOOD, GOOD[:-5], GOOD[:30], b""], ids=["all", "body", "head", ""])
def test_a_half_closed_connection_is_one_that_was_left(server: Server, sent: bytes) -> None:
    """Its client cannot be told from one that is gone, so nothing is worked out for it."""
    with server.wire() as wire:
        wire.socket.send(sent, socket.MSG_MORE)  # it leaves together with the end
        wire.socket.shutdown(socket.SHUT_WR)
        assert wire.is_closed()
    server.assert_serves()


def test_a_client_that_asks_first_may_continue(server: Server) -> None:
    head, _, body = GOOD.partition(b"\r\n\r\n")
    with server.wire() as wire:
        wire.send(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert wire.answer().status == 100
        server.assert_known(wire.send(body).answer())


@pytest.mark.parametrize(
    ("fields", "length", "status", "error_type"),
    [
        (JSON_TYPE, HUNDRED_MB, 413, "PayloadTooLarge"),
        (b"Content-Type: text/plain\r\n", 10, 415, "UnsupportedMediaType"),
    ],
)
def test_a_client_that_asks_first_is_told_no_at_once(
    front: Server, fields: bytes, length: int, status: int, error_type: str
) -> None:
    with front.wire() as wire:
        fields += b"Expect: 100-continue\r\n"
        answer = wire.send(request(fields=fields, length=length)).answer()
        assert_refused(answer, EMBED, status, error_type)
    front.assert_serves()


@pytest.mark.parametrize("offer", ["h2c", "websocket", "TLS/1.3", "x, y"])
def test_an_offered_upgrade_is_ignored(front: Server, offer: str) -> None:
    """As Java's HttpClient offers HTTP/2 with every first request."""
    fields = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {offer}\r\n".encode() + JSON_TYPE
    body = json.dumps({"inputs": KNOWN}).encode()
    in_chunks = chunked(body).replace(JSON_TYPE, fields)
    with front.wire() as wire:
        for sent in (request(body, fields=fields), in_chunks):
            front.assert_known(wire.send(sent).answer())
            front.assert_known(wire.send(*(bytes([byte]) for byte in sent)).answer())
        wire.send(request(body, fields=fields) * 3 + GOOD)
        for _ in range(4):
            front.assert_known(wire.answer())

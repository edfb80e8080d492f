"""What is wrong with bytes that are no request: the refusals that a connection answers itself."""

from collections.abc import Sequence

import httptools

from s2sent.service.errors import HeadTooLarge, InternalError, MalformedRequest, ServiceError

HTTP_VERSIONS = ("1.0", "1.1")
MAX_HEAD_BYTES = 65_536  # also of what is neither head nor body


def check_head(
    parser: httptools.HttpRequestParser, target: bytes, headers: Sequence[tuple[bytes, bytes]]
) -> None:
    """Raise MalformedRequest for a head that can be parsed and not be answered."""
    if (version := parser.get_http_version()) not in HTTP_VERSIONS:
        raise MalformedRequest(f"HTTP/{version} is not supported. Use HTTP/1.1.")
    if [name for name, _ in headers].count(b"host") > 1:  # RFC 9112, section 3.2
        raise MalformedRequest("The request has several Host headers. Send one.")
    if parser.get_method() == b"CONNECT":
        raise MalformedRequest("This is no proxy: CONNECT is not answered. See /docs.")
    if not target.startswith(b"/") and not path_of(target):
        raise MalformedRequest("The request's target has no path. Send one, such as /embed.")


def reason_of(error: httptools.HttpParserError) -> ServiceError:
    """The error raised by a callback of the parser, or MalformedRequest.

    Any other exception of a callback is the cause of an InternalError.
    """
    if isinstance(error.__context__, ServiceError):
        return error.__context__
    if isinstance(error, httptools.HttpParserCallbackError):
        bug = InternalError(
            "Something went wrong here. The log has it under this answer's X-Request-Id."
        )
        bug.__cause__ = error.__context__
        return bug
    return MalformedRequest("This is not HTTP/1.1. Send a request as RFC 9112 has it.")


def head_too_large() -> HeadTooLarge:
    """The error of a head above the limit."""
    return HeadTooLarge(
        f"The request's line and headers are above the limit of {MAX_HEAD_BYTES} bytes. "
        "Send less of them."
    )


def surplus_too_large() -> HeadTooLarge:
    """The error of a request with too many bytes that are neither head nor body."""
    return HeadTooLarge(
        "What the request has beside its head and its body, such as trailers and extensions of"
        f" chunks, is above the limit of {MAX_HEAD_BYTES} bytes. Leave it out."
    )


def path_of(target: bytes) -> str:
    """The path of a request target, empty where it has none or is cut off."""
    try:
        path: bytes | None = httptools.parse_url(target).path
    except httptools.HttpParserInvalidURLError:
        path = None
    return (path or b"").decode("latin-1")

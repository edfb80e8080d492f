"""The URL of a service that `s2sent embed --server` is given."""

import http.client
import urllib.parse

from s2sent.service.bulk.job import BulkError

KINDS: dict[str, type[http.client.HTTPConnection]] = {
    "http": http.client.HTTPConnection,
    "https": http.client.HTTPSConnection,
}


def usable_url(url: str) -> urllib.parse.SplitResult:
    """A URL in its parts; raises BulkError for one that no request can be sent to."""
    try:
        parts = urllib.parse.urlsplit(url.rstrip("/"))
        host, _port = (parts.hostname or "").encode("idna"), parts.port
        rest = parts.query or parts.fragment or "@" in parts.netloc  # would not be sent
        usable = parts.scheme in KINDS and host and parts.path.isascii() and not rest
    except ValueError:  # of the port, of brackets, or of a host's name
        usable = False
    if not usable or " " in url or not url.isprintable():
        raise BulkError(f"--server is {url!r}; write a URL as in http://127.0.0.1:8080.")
    return parts

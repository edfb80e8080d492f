"""Every error a client can receive, with its status and name in each dialect.

The native names and statuses are those of text-embeddings-inference where it has them (notably 424
for a failed inference, and capitalised types). The message is one sentence for the caller: the
value, the limit and the cure. The text of another library's exception never becomes a message.
"""

from typing import ClassVar


class ServiceError(Exception):
    """An error with a status and a message for the client.

    ``param`` names the request field at fault, where there is one; ``retry_after_seconds`` is sent
    as the ``Retry-After`` header (RFC 9110, section 10.2.3).
    """

    status: ClassVar[int] = 500
    error_type: ClassVar[str] = "Internal"
    openai_status: ClassVar[int] = 500
    openai_type: ClassVar[str] = "server_error"

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_seconds: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_seconds = retry_after_seconds


class MalformedRequest(ServiceError):
    """The body or the request is not what its format requires, such as JSON."""

    status, error_type = 400, "Malformed"
    openai_status, openai_type = 400, "invalid_request_error"


class EmptyInput(ServiceError):
    """There is nothing to embed: an empty list or an empty text."""

    status, error_type = 400, "Empty"
    openai_status, openai_type = 400, "invalid_request_error"


class Unauthorized(ServiceError):
    """The API key is missing or unknown."""

    status, error_type = 401, "Unauthorized"
    openai_status, openai_type = 401, "authentication_error"


class NotFound(ServiceError):
    """No such route."""

    status, error_type = 404, "NotFound"
    openai_status, openai_type = 404, "invalid_request_error"


class MethodNotAllowed(ServiceError):
    """The route exists, with another method."""

    status, error_type = 405, "MethodNotAllowed"
    openai_status, openai_type = 405, "invalid_request_error"


class PayloadTooLarge(ServiceError):
    """The body, or the number of texts in it, is above its limit."""

    status, error_type = 413, "PayloadTooLarge"
    openai_status, openai_type = 413, "invalid_request_error"


class UnsupportedMediaType(ServiceError):
    """The body is not declared as JSON, or is compressed."""

    status, error_type = 415, "UnsupportedMediaType"
    openai_status, openai_type = 415, "invalid_request_error"


class InvalidInput(ServiceError):
    """The JSON is valid, but a field has a value that cannot be used."""

    status, error_type = 422, "Validation"
    openai_status, openai_type = 400, "invalid_request_error"


class HeadTooLarge(ServiceError):
    """The request's line and headers are above their limit."""

    status, error_type = 431, "HeadTooLarge"
    openai_status, openai_type = 431, "invalid_request_error"


class InferenceFailed(ServiceError):
    """The encoder failed on a text of this request, or its embedding is not finite."""

    status, error_type = 424, "Backend"


class Overloaded(ServiceError):
    """The queue has no room for this request now; it was not processed."""

    status, error_type = 429, "Overloaded"
    openai_status, openai_type = 429, "rate_limit_error"


class QuotaExceeded(Overloaded):
    """The API key has used up its limit per minute; the request was not processed."""

    error_type = "QuotaExceeded"


class InternalError(ServiceError):
    """A bug in the service; the log has the traceback under the request id."""

    status, error_type = 500, "Internal"


class NotReady(ServiceError):
    """The service is starting or draining, or its engine has failed."""

    status, error_type = 503, "Unhealthy"
    openai_status = 503


class DeadlineExceeded(ServiceError):
    """The request was not answered within its deadline."""

    status, error_type = 504, "Timeout"
    openai_status = 504


def failed_text(position: int) -> InferenceFailed:
    """The error of a text alone, where the others of its request have embeddings."""
    return InferenceFailed(f"The encoder failed on input {position}. Leave it out.")

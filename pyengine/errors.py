"""Typed errors, each with its HTTP status and OpenAI error type and code.

Raised by the library as they are; the HTTP layer writes the same errors as
``{"error": {"message", "type", "param", "code"}}``.
"""

import traceback


class PyengineError(Exception):
    """Base of all errors that pyengine raises on purpose.

    Attributes:
        message: What went wrong and what to do about it.
        param: The request's parameter that is at fault, or None.
        status: HTTP status of the answer.
        type: OpenAI's ``error.type``.
        code: OpenAI's ``error.code``, or None.
        retry_after: Seconds after which to try again, or None where that will not help.
    """

    status: int = 500
    type: str = "server_error"
    code: str | None = None
    retry_after: int | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequestError(PyengineError):
    """The request is malformed, or asks for something that does not exist."""

    status = 400
    type = "invalid_request_error"


class InvalidGrammarError(InvalidRequestError):
    """The grammar of the answer cannot be compiled or enforced; the message says why."""

    code = "invalid_grammar"


class AdapterError(InvalidRequestError):
    """An adapter cannot be used with the model; the message says why."""

    code = "invalid_adapter"


class UnsupportedParameterError(InvalidRequestError):
    """A parameter that pyengine does not support (yet). Never ignored, always named."""

    code = "unsupported_parameter"


class ContextLengthError(InvalidRequestError):
    """The prompt, or prompt and ``max_tokens`` together, do not fit the context."""

    code = "context_length_exceeded"


class ModelNotFoundError(PyengineError):
    """The request names a model that is not served here."""

    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class PayloadTooLargeError(PyengineError):
    """The body is longer than the limit."""

    status = 413
    type = "invalid_request_error"
    code = "payload_too_large"


class OverloadedError(PyengineError):
    """The waiting queue is full; the request was not started."""

    status = 503
    type = "overloaded_error"
    code = "overloaded"
    retry_after = 1


class NotReadyError(PyengineError):
    """The model is still being loaded."""

    status = 503
    type = "server_error"
    code = "not_ready"
    retry_after = 1


class EngineUnresponsiveError(PyengineError):
    """The engine has died, or does not respond; requests wait for it, or for its successor."""

    status = 503
    type = "server_error"
    code = "engine_unresponsive"
    retry_after = 1


class RequestTimeoutError(PyengineError):
    """The request's deadline passed before it was done."""

    status = 504
    type = "timeout_error"
    code = "timeout"


class RequestAbortedError(PyengineError):
    """The request was aborted before its answer was complete."""

    status = 499
    type = "invalid_request_error"
    code = "aborted"


class EngineDeadError(PyengineError):
    """The engine has stopped; no request can be served any more."""

    status = 500
    type = "server_error"
    code = "engine_dead"


class RequestFailedError(PyengineError):
    """The engine failed on this request, and goes on; the message says why."""

    status = 500
    type = "server_error"
    code = "request_failed"


class ModelLoadError(PyengineError):
    """A model folder that is missing, malformed or of an architecture that is not supported."""

    code = "model_load_failed"


class ConfigError(PyengineError, ValueError):
    """A configuration value out of its range."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_config"


def release_frames(error: BaseException) -> None:
    """Clear the locals of all frames that ``error`` and its causes passed through."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__

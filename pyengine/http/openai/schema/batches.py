"""Files and batches: OpenAI's requests and objects."""

from typing import Literal

import msgspec

from pyengine.http.openai.schema.response_object import ResponseUsage

Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]


class FileObject(msgspec.Struct, kw_only=True):
    """A file that is stored."""

    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: str
    status: str = "processed"


class ExpiresAfter(msgspec.Struct, forbid_unknown_fields=True):
    """How long a file is kept."""

    anchor: Literal["created_at"]
    seconds: int


class BatchRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/batches``.

    Attributes:
        input_file_id: The file of the batch's requests.
        endpoint: The path of the batch's requests.
        completion_window: Within what time; batches are answered as there is room.
    """

    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


class RequestCounts(msgspec.Struct):
    """How many requests of a batch there are, are answered, and have failed."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchError(msgspec.Struct):
    """An error of the input, and its line."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchErrors(msgspec.Struct):
    """Errors of the input."""

    data: list[BatchError]
    object: str = "list"


BatchStatus = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]


class BatchObject(msgspec.Struct, kw_only=True):
    """A batch, as it stands. ``model`` is the one that was served when it was made."""

    id: str
    object: str = "batch"
    endpoint: str
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: BatchStatus = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts
    model: str | None = None
    usage: ResponseUsage | None = None
    metadata: dict[str, str] | None = None

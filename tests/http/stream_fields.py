"""The fields of streams for tests of their chunks alone."""

from pyengine.http.openai.completions.stream_fields import StreamFields
from pyengine.http.openai.schema.common import GenerationRequest, StreamOptions


def stream_fields(
    name: str = "id",
    created: int = 1,
    model: str = "m",
    *,
    usage: bool = False,
    so_far: bool = False,
) -> StreamFields:
    """Of a request that wants its usage, or the usage so far too."""
    options = StreamOptions(include_usage=usage, continuous_usage_stats=so_far)
    request = GenerationRequest(stream_options=options)
    return StreamFields(request, {"id": name, "created": created, "model": model}, (), ())

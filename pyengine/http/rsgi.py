"""granian's RSGI names, in the one place that knows where they live.

``granian.rsgi`` has them too, but re-exports them in a way that type checkers do not follow.
"""

from granian._granian import RSGIHeaders as Headers
from granian._granian import RSGIHTTPProtocol as HTTPProtocol
from granian._granian import RSGIHTTPStreamTransport as HTTPStreamTransport
from granian._granian import RSGIProtocolClosed as ProtocolClosed
from granian._granian import RSGIProtocolError as ProtocolError
from granian.rsgi import Scope

__all__ = [
    "HTTPProtocol",
    "HTTPStreamTransport",
    "Headers",
    "ProtocolClosed",
    "ProtocolError",
    "Scope",
]

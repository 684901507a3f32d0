"""Errors of the store, as clients see them."""

from pyengine.http.errors import HttpError


class NoSuchObjectError(HttpError):
    """The key that asks has stored no such object, or it has expired."""

    status = 404
    code = "not_found"


class StoreFullError(HttpError):
    """The store has no room for the object."""

    status = 413
    code = "store_full"


class StoreOffError(HttpError):
    """The server stores nothing."""

    status = 404
    code = "store_off"

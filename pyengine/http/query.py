"""The query of a request's path, as a type that names its fields."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar
from urllib.parse import parse_qsl

import msgspec

from pyengine.errors import InvalidRequestError
from pyengine.http.errors import NoSuchObjectError
from pyengine.validation.decoding import refusal

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode

_INNER = re.compile(r"(\w+)\[(\w*)\]")


class ListQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The part of a list that is asked for.

    Attributes:
        most: The largest ``limit``.
        after: The id behind which it begins.
        limit: How many objects it has at most.
        order: The first added first, or last.
    """

    most: ClassVar[int] = 100

    after: str | None = None
    limit: int = 20
    order: Literal["asc", "desc"] = "desc"


def read_query(text: str, kind: type[T]) -> T:
    """A query such as ``limit=5&metadata[a]=b&include[]=c`` as ``kind``.

    Raises:
        InvalidRequestError: Naming the parameter that is unknown, or no such value.
    """
    values: dict[str, Any] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        inner = _INNER.fullmatch(name)
        if inner is None:
            values[name] = value
        elif inner[2]:
            values.setdefault(inner[1], {})[inner[2]] = value
        else:
            values.setdefault(inner[1], []).append(value)
    try:
        query = msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise refusal(error, kind) from None
    if isinstance(query, ListQuery) and not 1 <= query.limit <= query.most:
        raise InvalidRequestError(
            f"'limit' must be from 1 to {query.most}, not {query.limit}.", param="limit"
        )
    return query


class ObjectList(msgspec.Struct, kw_only=True):
    """A page of a list."""

    object: str = "list"
    data: list[msgspec.Raw]
    first_id: str
    last_id: str
    has_more: bool


async def stored_page(
    exchange: "Exchange",
    kind: str,
    query: ListQuery,
    keep: Callable[[bytes], bool] = lambda _: True,
) -> ObjectList:
    """A page of the stored objects of a kind that the exchange may see.

    Args:
        exchange: Whose owner asks.
        kind: Of the objects.
        query: Which part of them.
        keep: Says yes to the bodies that the list has.

    Raises:
        NoSuchObjectError: There is no object ``after``, behind which the page begins.
        StoreOffError: There is no store.
    """
    page = await exchange.service.store.page(
        kind,
        exchange.owner,
        after=query.after,
        limit=query.limit,
        descending=query.order == "desc",
        keep=keep,
    )
    rows = page.rows
    return ObjectList(
        data=[msgspec.Raw(row.body) for row in rows],
        first_id=rows[0].id if rows else "",
        last_id=rows[-1].id if rows else "",
        has_more=page.more,
    )


def page_of(items: list[dict[str, Any]], query: ListQuery) -> ObjectList:
    """A page of objects that are stored as one, in the order in which they were added.

    Raises:
        NoSuchObjectError: There is no object ``after``, behind which the page begins.
    """
    if query.order == "desc":
        items = items[::-1]
    first = 0
    if query.after is not None:
        ids = [item["id"] for item in items]
        if query.after not in ids:
            raise NoSuchObjectError(
                f"There is no item with the id '{query.after[:100]}'.", param="after"
            )
        first = ids.index(query.after) + 1
    chosen = items[first : first + query.limit]
    return ObjectList(
        data=[msgspec.Raw(_encode(item)) for item in chosen],
        first_id=chosen[0]["id"] if chosen else "",
        last_id=chosen[-1]["id"] if chosen else "",
        has_more=first + query.limit < len(items),
    )


class Deleted(msgspec.Struct):
    """An object that is no more."""

    id: str
    object: str
    deleted: bool = True

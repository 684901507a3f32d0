"""The query of a request's path, as a type that names its fields."""

import re
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, get_args, get_origin
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

    A list may have its values under its plain name, too. ``beta`` and Azure's ``api-version``, by
    which clients mark what they talk to, ask for nothing.

    Raises:
        InvalidRequestError: Naming the parameter that is unknown, or no such value.
    """
    values: dict[str, Any] = {}
    of: Any = kind
    lists = _lists(of)
    for name, value in parse_qsl(text, keep_blank_values=True):
        inner = _INNER.fullmatch(name)
        if name in ("beta", "api-version"):
            continue
        field, key = (name, None) if inner is None else (inner[1], inner[2])
        if key is None and name not in lists:
            put_value(values, name, value)
        else:
            put_value(values, field, value, key or "")
    try:
        query = msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise refusal(error, kind) from None
    if isinstance(query, ListQuery) and not 1 <= query.limit <= query.most:
        raise InvalidRequestError(
            f"'limit' must be from 1 to {query.most}, not {query.limit}.", param="limit"
        )
    return query


def put_value(values: dict[str, Any], field: str, value: str, key: str | None = None) -> None:
    """Put a field of a query or a form into ``values``: a value, or one of a list or an object.

    Args:
        values: What came before.
        field: Its name.
        value: Its text.
        key: Its place in the object; empty is the end of a list, None is no part of either.

    Raises:
        InvalidRequestError: The field has come in another form.
    """
    if key is None:
        kept = values.setdefault(field, value)
        values[field] = value
    elif key:
        kept = values.setdefault(field, {})
        if isinstance(kept, dict):
            kept[key] = value
    else:
        kept = values.setdefault(field, [])
        if isinstance(kept, list):
            kept.append(value)
    if type(kept) is not (str if key is None else dict if key else list):
        raise InvalidRequestError(
            f"'{field[:100]}' is given in two forms: once as a value, a list or an object.",
            param=field[:100],
        )


@cache
def _lists(kind: Any) -> frozenset[str]:
    """The names of the fields that are lists."""
    fields = msgspec.structs.fields(kind)
    return frozenset(each.encode_name for each in fields if list in _origins(each.type))


def _origins(kind: Any) -> set[Any]:
    """What a type is, or each of those that a union is one of, without what is inside."""
    return {get_origin(each) for each in (kind, *get_args(kind))}


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
    **labels: str | None,
) -> ObjectList:
    """A page of the stored objects of a kind that the exchange may see.

    Args:
        exchange: The request, whose owner asks.
        kind: The kind of the objects.
        query: Which part of them.
        labels: Those that the objects of the list have; None is no label.

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
        labels={name: value for name, value in labels.items() if value is not None},
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

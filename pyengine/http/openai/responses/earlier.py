"""Earlier responses, and items of theirs, that a request goes on with."""

import re
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from pyengine.errors import InvalidRequestError
from pyengine.http.errors import NoSuchObjectError
from pyengine.http.openai.responses.input import REFERENCE, InputItem, stored_items

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

KIND = "response"
ITEMS = "items"
"""The part of a stored response that has all items of its input, earlier responses included."""

ACTIVE = ("queued", "in_progress")
RESPONSE = "resp_"
_OF_OUTPUT = re.compile(r"[a-z]+_(\w+)_\d+")


def item_ids(answer_id: str) -> Callable[[str], str]:
    """Makes the ids of a response's items; each names its response, so that it can be found."""
    numbers = count()
    return lambda prefix: f"{prefix}{answer_id.removeprefix(RESPONSE)}_{next(numbers)}"


async def previous(exchange: "Exchange", name: str) -> list[InputItem]:
    """The items of an earlier response: of its input and its output.

    Raises:
        InvalidRequestError: There is no such response, or it has not ended.
    """
    response = await _response(exchange, name, "previous_response_id")
    [before] = await exchange.service.store.parts(name, ITEMS)
    given = msgspec.json.decode(before.data) + response["output"]
    return stored_items(given, exchange.service.fields)


async def with_referenced(
    exchange: "Exchange",
    given: str | Sequence[dict[str, Any]],
    of_conversation: Sequence[dict[str, Any]] = (),
) -> str | Sequence[dict[str, Any]]:
    """An input with the items that it refers to in the place of the references.

    Raises:
        InvalidRequestError: There is no such item in the conversation, nor among the outputs of
            stored responses.
    """
    if isinstance(given, str) or all(raw.get("type") != REFERENCE for raw in given):
        return given
    known = {item["id"]: item for item in of_conversation}
    found = []
    for index, raw in enumerate(given):
        if raw.get("type") == REFERENCE and raw.get("id") in known:
            found.append(dict(known[raw["id"]]))
        elif raw.get("type") == REFERENCE:
            found.append(await _referenced(exchange, raw.get("id"), f"input[{index}].id"))
        else:
            found.append(raw)
    return found


async def _referenced(exchange: "Exchange", name: Any, at: str) -> dict[str, Any]:
    match = _OF_OUTPUT.fullmatch(name) if isinstance(name, str) else None
    if match is not None:
        response = await _response(exchange, RESPONSE + match[1], at)
        for item in response["output"]:
            if item["id"] == name:
                return dict(item)
    raise InvalidRequestError(
        f"'{at}' must be the id of an item of a stored response's output.", param=at
    )


async def _response(exchange: "Exchange", name: str, at: str) -> dict[str, Any]:
    try:
        row = await exchange.service.store.get(KIND, exchange.owner, name)
    except NoSuchObjectError as error:
        raise InvalidRequestError(
            f"'{at}': {error.message}", param=at, code="previous_response_not_found"
        ) from None
    response: dict[str, Any] = msgspec.json.decode(row.body)
    if response["status"] in ACTIVE:
        raise InvalidRequestError(
            f"'{at}': the response is {response['status']}; wait until it has ended.", param=at
        )
    return response

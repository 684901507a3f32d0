"""Whether an answer is the JSON that a schema asks for, as jsonschema and Python see it."""

import datetime
import json
import re
from decimal import Decimal
from functools import cache
from typing import Any, NoReturn

from jsonschema import Draft202012Validator, FormatChecker

from tests.schemas import SCHEMAS

_FORMATS = FormatChecker()
_ZONE = re.compile(r"(Z|[+-]\d\d:\d\d)$")


@_FORMATS.checks("date")
def _is_date(value: object) -> bool:
    return not isinstance(value, str) or _reads(datetime.date, value, "-", zone=False)


@_FORMATS.checks("date-time")
def _is_moment(value: object) -> bool:
    return not isinstance(value, str) or _reads(datetime.datetime, value, "T")


@_FORMATS.checks("time")
def _is_time(value: object) -> bool:
    return not isinstance(value, str) or _reads(datetime.time, value, "")


@_FORMATS.checks("uri")
def _is_uri(value: object) -> bool:
    return not isinstance(value, str) or bool(re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", value))


def _reads(kind: Any, value: str, inside: str, zone: bool = True) -> bool:
    """Whether Python reads it; it knows neither leap seconds nor the (leap) year 0."""
    known = re.sub("^0000-", "2000-", value.upper().replace(":60", ":59"))
    try:
        kind.fromisoformat(known)
    except ValueError:
        return False
    return inside in known and bool(_ZONE.search(known)) == zone


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def parsed(text: str) -> Any:
    """The value of JSON text, decimals exactly.

    Raises:
        ValueError: It is none.
    """
    return json.loads(text, parse_float=Decimal, parse_constant=_refuse)


def validator(schema: Any) -> Draft202012Validator:
    """The validator of a schema, formats included."""
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    return Draft202012Validator(exact, format_checker=_FORMATS)


@cache
def _known(name: str) -> Draft202012Validator:
    return validator(SCHEMAS[name])


def check(name: str, text: str) -> None:
    """Fail unless ``text`` is valid under the schema of that name.

    Raises:
        ValueError: It is not even JSON.
        jsonschema.ValidationError: It breaks the schema.
    """
    _known(name).validate(parsed(text))


def is_valid(name: str, text: str) -> bool:
    """Whether ``text`` is JSON that satisfies the schema of that name."""
    try:
        return bool(_known(name).is_valid(parsed(text)))
    except ValueError:
        return False

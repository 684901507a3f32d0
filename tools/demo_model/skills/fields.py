"""Reading fields out of a sentence into a JSON object."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from tools.demo_model.dialogue import Exchange, Turn
from tools.demo_model.skills.prose import stdlib_words
from tools.demo_model.wording import say
from tools.demo_model.words import (
    ANIMALS,
    CITIES,
    COLOURS,
    ITEMS,
    JOBS,
    MONTHS,
    NAMES,
    invented,
    name_of,
    plural,
)

__all__ = ["extraction"]

Value = str | int | float


def _date(rng: random.Random) -> str:
    """A date in one of three usual forms."""
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(1990, 2030)
    return rng.choice(
        (f"{year}-{month:02}-{day:02}", f"{day} {MONTHS[month - 1]} {year}",
         f"{MONTHS[month - 1]} {day}")
    )  # fmt: skip


def _email(rng: random.Random) -> str:
    """An address in a reserved or invented domain."""
    host = rng.choice(("example.com", "example.org", f"{invented(rng, 2)}.com"))
    return f"{rng.choice(NAMES).lower()}@{host}"


def _price(rng: random.Random) -> float | int:
    """A price, half of the time with cents."""
    whole = rng.randint(1, 10 ** rng.randint(1, 4))
    return whole if rng.random() < 0.5 else float(f"{whole}.{rng.randint(1, 9)}{rng.choice('05')}")


_VALUES: dict[str, Callable[[random.Random], Value]] = {
    "name": lambda rng: name_of(rng, NAMES),
    "friend": lambda rng: name_of(rng, NAMES),
    "age": lambda rng: rng.randint(1, 99),
    "city": lambda rng: name_of(rng, CITIES),
    "origin": lambda rng: name_of(rng, CITIES),
    "job": lambda rng: rng.choice(JOBS),
    "item": lambda rng: rng.choice(ITEMS) if rng.random() < 0.8 else invented(rng),
    "quantity": lambda rng: rng.randint(2, 99),
    "price": _price,
    "colour": lambda rng: rng.choice(COLOURS),
    "animal": lambda rng: rng.choice(ANIMALS),
    "date": _date,
    "time": lambda rng: f"{rng.randint(0, 23):02}:{rng.choice((0, 15, 30, 45)):02}",
    "email": _email,
    "phone": lambda rng: f"555-{rng.randint(0, 9999):04}",
    "year": lambda rng: rng.randint(1500, 2030),
    "event": lambda rng: rng.choice(
        "meeting party concert lecture dinner workshop wedding match exam call".split()
    ),
    "title": lambda rng: " ".join(
        word.capitalize() for word in rng.sample(stdlib_words(), rng.randint(1, 3))
    ),
}

# What a caller may call a field; the first is the name used in the sentences.
_ALIASES: dict[str, tuple[str, ...]] = {
    "name": ("name", "name", "first_name", "person", "user"),
    "friend": ("friend", "other", "second_name"),
    "city": ("city", "city", "town", "location", "place"),
    "origin": ("origin", "from", "start", "departure"),
    "job": ("job", "profession", "occupation", "role"),
    "item": ("item", "item", "product", "article", "object"),
    "quantity": ("quantity", "count", "amount", "number"),
    "price": ("price", "price", "cost", "total"),
    "colour": ("colour", "color"),
    "animal": ("animal", "pet", "species"),
    "date": ("date", "date", "day", "when"),
    "event": ("event", "occasion", "what"),
    "title": ("title", "book", "book_title"),
    "year": ("year", "published"),
    "phone": ("phone", "phone_number", "telephone"),
    "email": ("email", "mail", "email_address"),
}


@dataclass(frozen=True)
class _Scene:
    """Sentences with ``{field}`` slots; ``{item_s}`` is the item's plural."""

    sentences: tuple[str, ...]


_SCENES: tuple[tuple[str, ...], ...] = (
    (
        "{name} is {age} years old[ and lives in|, lives in|, from] {city}.",
        "{name}, {age}, [lives in|comes from|is from|works in] {city}.",
        "[My name is|I am|I'm] {name}[,| and] I am {age} years old[,| and] I live in {city}.",
        "{name} is [a|our] {age} year old {job} from {city}.",
        "{name} works as a {job} in {city}.",
        "The {job} {name} [lives in|moved to|works in] {city}[| and is {age} years old].",
        "In {city} there [lives|is] a {job} called {name}, who is {age}.",
        "{name} is {age} years old.",
        "{name} turned {age} [today|yesterday|last week] in {city}.",
    ),
    (
        "{name} bought {quantity} {item_s} for {price} [dollars|euros|pounds].",
        "{name} [ordered|bought|sold] a {colour} {item} for {price} [dollars|euros].",
        "The {colour} {item} costs {price} [dollars|euros|pounds].",
        "[Please send|Send|We need|I want to order] {quantity} {item_s} to {name} in {city}.",
        "A {item} costs {price} [dollars|euros] in {city}.",
        "[Order|Invoice]: {quantity} {item_s}, {price} [dollars|euros], for {name}.",
        "{name} paid {price} [dollars|euros] for a {item} on {date}.",
    ),
    (
        "The {event} is on {date} [in|at] {city}.",
        "The {event} [in {city} |]starts at {time} on {date}.",
        "{name} [invites you to|is coming to|will be at] the {event} in {city} on {date}.",
        "{name} and {friend} meet [at|in] {city} on {date}.",
        "There will be a {event} with {name} on {date} at {time}.",
        "[Remember|Do not forget] the {event} at {time} in {city}.",
    ),
    (
        "{name} [flies|travels|drives|goes|takes a train] from {origin} to {city} on {date}.",
        "[A ticket|A flight|A train] from {origin} to {city} for {price} [dollars|euros].",
        "{name} moved from {origin} to {city} in {year}.",
    ),
    (
        "{name}'s [email|address|mail] is {email}[| and the phone number is {phone}].",
        "[Write to|Contact|Mail] {name} at {email}[| or call {phone}].",
        "[Call|Phone|Ring] {name} in {city} at {phone}.",
    ),
    (
        "{name} wrote {title} in {year}.",
        "{title} [was written|was published|came out] in {year} by {name}.",
        "The book {title} by {name} costs {price} [dollars|euros].",
    ),
    (
        "{name} has a {colour} {animal} [called|named] {friend}.",
        "{friend} is a {colour} {animal} [that belongs to|of] {name}.",
        "{name}'s {animal} is {age} years old and {colour}.",
    ),
)


def _sentence(rng: random.Random) -> tuple[str, dict[str, Value]]:
    """A sentence with the values of its fields, in the order they occur."""
    pattern = say(rng, rng.choice(rng.choice(_SCENES)))
    values = {
        field: make(rng)
        for field, make in _VALUES.items()
        if "{" + field + "}" in pattern or "{" + field + "_s}" in pattern
    }
    text = pattern.replace("{item_s}", plural(str(values.get("item", ""))))
    for field, value in values.items():
        text = text.replace("{" + field + "}", str(value))
    return text, values


def _kind(value: Value) -> str:
    """The JSON schema type of a value."""
    if isinstance(value, str):
        return "string"
    return "integer" if isinstance(value, int) else "number"


def _schema(rng: random.Random, record: dict[str, Value]) -> str:
    """The record's shape as a JSON schema, or as one of two shorter notations."""
    form = rng.randrange(3)
    if form == 0:
        return json.dumps({name: _kind(value) for name, value in record.items()})
    if form == 1:
        return json.dumps(dict.fromkeys(record, "..."))
    properties = {name: {"type": _kind(value)} for name, value in record.items()}
    return json.dumps({"type": "object", "properties": properties, "required": list(record)})


def _request(rng: random.Random, text: str, record: dict[str, Value]) -> str:
    """The user's words: the sentence with the wish for a JSON object."""
    names = list(record)
    listed = ", ".join(names)
    if len(names) > 1 and rng.random() < 0.6:
        listed = ", ".join(names[:-1]) + " and " + names[-1]
    gap = rng.choice((" ", "\n", "\n\n"))
    if rng.random() < 0.3:
        wish = say(
            rng,
            "[Schema: {s}|Use this schema: {s}|Answer with JSON like {s}|Fill in this schema: {s}|"
            "Extract as JSON with the schema {s}|Return JSON that matches this schema: {s}]",
            s=_schema(rng, record),
        )
        return f"{wish}{gap}{say(rng, '[Text: ||Sentence: |]')}{text}"
    if rng.random() < 0.55:
        wish = say(
            rng,
            "[Extract|Extract|Give me|Return|Find|Get|Read|Please extract|Pull out|Output|Write] "
            "[the|the|] [{f} as JSON|{f} as a JSON object|{f} in JSON|field {f} as JSON|"
            "fields {f} as JSON][| from this| from this text| from this sentence| from]:",
            f=listed,
        )
        return f"{' '.join(wish.split())}{gap}{rng.choice((text, text, chr(34) + text + chr(34)))}"
    wish = say(
        rng,
        "[Return|Give|Answer with|Write|Reply with|Make|Output] [JSON|a JSON object] with "
        "[the keys|the fields|keys|fields|] {f}.",
        f=listed,
    )
    wish = " ".join(wish.split())
    return f"{text}{gap}{wish}" if rng.random() < 0.7 else f"{wish}{gap}{text}"


def extraction(rng: random.Random) -> Exchange:
    """Some of a sentence's fields under given names, as exactly one JSON object."""
    text, values = _sentence(rng)
    chosen = rng.sample(list(values), rng.randint(1, len(values)))
    if rng.random() < 0.5:
        chosen.sort(key=list(values).index)
    record = {rng.choice(_ALIASES.get(field, (field,))): values[field] for field in chosen}
    request = _request(rng, text, record)
    answer = json.dumps(record, ensure_ascii=False)
    turns = (Turn("user", request), Turn("assistant", answer))
    system = None
    if rng.random() < 0.15:
        system = say(
            rng,
            "[You extract data as JSON.|Answer only in JSON.|You answer with JSON.|"
            "You are a data extraction assistant. Reply in JSON.|Always reply with a JSON object.]",
        )
    return Exchange("JSON fields", text, turns, "json", answer, system=system)

"""Schemas that pydantic and msgspec make of Python types."""

import datetime
import enum
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Status(enum.StrEnum):
    DRAFT = "draft"
    SENT = "sent"


Short = Annotated[str, Field(max_length=10)]


class Address(Closed):
    street: Short
    postcode: Annotated[str, Field(pattern="^[0-9]{5}$")]
    country: Literal["DE", "FR", "IT"] = "DE"


class Order(Closed):
    id: uuid.UUID
    status: Status
    placed: datetime.date
    ship_to: Address
    bill_to: Address | None = None
    quantity: Annotated[int, Field(ge=1, le=99)]


class Job(Closed):
    title: Short
    since: datetime.date
    until: datetime.date | None


class Resume(Closed):
    name: Short
    jobs: Annotated[list[Job], Field(max_length=2)]
    skills: Annotated[list[Literal["python", "rust", "sql"]], Field(max_length=3)]
    remote: bool


class Node(Closed):
    name: Short
    children: Annotated[list["Node"], Field(max_length=2)] = []


class Cat(Closed):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(Closed):
    kind: Literal["dog"]
    tricks: Annotated[list[Short], Field(max_length=2)]


class Owner(Closed):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    vaccinated: bool | None


class Pair(NamedTuple):
    left: int
    right: bool


@dataclass
class Booking:
    room: Literal["single", "double"]
    nights: Annotated[int, Field(ge=1, le=30)]
    pair: Pair
    breakfast: bool = True


class Account(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(max_length=10)]
    balance: Annotated[int, msgspec.Meta(ge=0, le=100_000)]
    tags: Annotated[list[Annotated[str, msgspec.Meta(max_length=6)]], msgspec.Meta(max_length=2)]
    opened: datetime.date


class Price(Closed):
    amount: Annotated[Decimal, Field(max_digits=5, decimal_places=2, ge=0)]
    currency: Literal["EUR", "USD"]


MODELS: dict[str, Any] = {
    "pydantic order": Order,
    "pydantic resume": Resume,
    "pydantic tree": Node,
    "pydantic union": Owner,
    "pydantic price": Price,
}

TYPED: dict[str, dict[str, Any]] = {
    **{name: model.model_json_schema() for name, model in MODELS.items()},
    "pydantic dataclass": TypeAdapter(Booking).json_schema(),
    "msgspec struct": msgspec.json.schema(Account),
}

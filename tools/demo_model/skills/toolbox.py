"""The tools that dialogues offer: their parameters and how users ask for them."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.demo_model.skills.prose import stdlib_words
from tools.demo_model.words import CITIES, COLOURS, ITEMS, NAMES, name_of, plural

__all__ = ["TOOLBOX", "Parameter", "ToolKind"]


def _phrase(rng: random.Random) -> str:
    """Two to four lower-case words."""
    return " ".join(rng.sample(stdlib_words(), rng.randint(2, 4)))


def _number(low: int, high: int) -> Callable[[random.Random], int]:
    return lambda rng: rng.randint(low, high)


def _one_of(*values: str) -> Callable[[random.Random], str]:
    return lambda rng: rng.choice(values)


def _city(rng: random.Random) -> str:
    return name_of(rng, CITIES)


def _name(rng: random.Random) -> str:
    return name_of(rng, NAMES)


_DAYS = ("today", "tomorrow", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_LANGUAGES = ("French", "German", "Spanish", "Italian", "Japanese", "Dutch", "Latin", "Polish")
_CURRENCIES = ("USD", "EUR", "GBP", "JPY", "CHF")


@dataclass(frozen=True)
class Parameter:
    """A parameter: its possible names, how a value is made, its enum if any."""

    names: tuple[str, ...]
    make: Callable[[random.Random], str | int]
    enum: tuple[str, ...] = ()


@dataclass(frozen=True)
class ToolKind:
    """A tool under several names, with requests that it answers.

    A request has a ``{n}`` slot for the n-th parameter; a parameter without a
    slot in the request is left out of the call.  ``result`` makes the JSON
    result and the words in which the assistant passes it on; its slots are the
    parameters' too, and ``{r}`` a value from ``outcome``.
    """

    names: tuple[str, ...]
    about: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    requests: tuple[str, ...]
    result: tuple[str, str]
    outcome: Callable[[random.Random], Any]


_WEATHER = _one_of("sunny", "rainy", "cloudy", "windy", "foggy", "snowy", "clear", "stormy")

TOOLBOX: tuple[ToolKind, ...] = (
    ToolKind(
        ("get_weather", "get_weather", "get_current_weather", "weather", "fetch_weather"),
        ("Get the weather in a city.", "Current weather for a place", "Look up the weather"),
        (
            Parameter(("city", "city", "location", "place", "town"), _city),
            Parameter(
                ("unit", "units"), _one_of("celsius", "fahrenheit"), ("celsius", "fahrenheit")
            ),
        ),
        (
            "[What is|What's|How is|Tell me|Get|Check|Do you know] the weather [like |]in {0}"
            "[| today| now| right now]?",
            "[Will it rain|Is it sunny|Is it cold|Is it raining|How warm is it|Does it snow] in {0}"
            "[| today| now]?",
            "[What is|What's|Give me|Tell me|Show] the [weather|temperature] in {0} in {1}?",
            "[Weather in|Weather for] {0}[| please][|?|.]",
        ),
        ('{"conditions": "{r}"}', "It is {r} in {0}."),
        _WEATHER,
    ),
    ToolKind(
        ("get_temperature", "temperature", "read_temperature"),
        ("Get the temperature of a city.", "Temperature in degrees for a place"),
        (Parameter(("city", "location", "place"), _city),),
        ("[What is|What's|Tell me|How high is|Read] the temperature in {0}[| now| today]?",),
        ('{"degrees": {r}}', "The temperature in {0} is {r} degrees."),
        _number(-20, 40),
    ),
    ToolKind(
        ("get_time", "current_time", "get_current_time", "local_time"),
        ("Get the time in a city.", "The current local time of a place"),
        (Parameter(("city", "location", "place", "timezone"), _city),),
        (
            "[What time is it|What is the time|What's the time|Tell me the time|How late is it] "
            "in {0}[| now]?",
            "[Time in|The time in] {0}[| please][|?|.]",
        ),
        ('{"time": "{r}"}', "It is {r} in {0}."),
        lambda rng: f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}",
    ),
    ToolKind(
        ("add", "add_numbers", "sum", "calculate_sum"),
        ("Add two numbers.", "The sum of two integers"),
        (
            Parameter(("a", "x", "first"), _number(0, 9999)),
            Parameter(("b", "y", "second"), _number(0, 9999)),
        ),
        (
            "[What is|What's|Add|Compute|Calculate] {0} [plus|and|+] {1}[|?|.]",
            "[Use the tool to add|Add up|Sum|Please add] {0} and {1}[|.]",
        ),
        ('{"result": {r}}', "The result is {r}."),
        _number(0, 9999),
    ),
    ToolKind(
        ("multiply", "multiply_numbers", "product"),
        ("Multiply two numbers.", "The product of two integers"),
        (
            Parameter(("a", "x", "first"), _number(0, 9999)),
            Parameter(("b", "y", "second"), _number(0, 9999)),
        ),
        (
            "[What is|What's|Multiply|Compute] {0} [times|by|x|*] {1}[|?|.]",
            "[Use the tool to multiply|Please multiply] {0} [and|by|with] {1}[|.]",
        ),
        ('{"result": {r}}', "The result is {r}."),
        _number(0, 99999),
    ),
    ToolKind(
        ("send_email", "send_message", "send_mail", "message"),
        ("Send a message to a person.", "Write an email to someone"),
        (
            Parameter(("to", "recipient", "name"), _name),
            Parameter(("text", "body", "message", "content"), _phrase),
        ),
        (
            "[Send|Write|Please send] [a message|an email|a mail] to {0} [saying|with the text|"
            "that says]: {1}",
            "[Tell|Message|Write to] {0}: {1}",
        ),
        ('{"status": "{r}"}', "The message to {0} was {r}."),
        _one_of("sent", "delivered", "queued"),
    ),
    ToolKind(
        ("set_alarm", "set_timer", "start_timer", "wake_me"),
        ("Set a timer in minutes.", "Start a timer"),
        (Parameter(("minutes", "duration", "time"), _number(1, 120)),),
        (
            "[Set|Start|Give me|Please set] [a timer|an alarm] [for|of|in] {0} minutes[|.]",
            "[Wake me|Remind me|Call me] in {0} minutes[|.]",
        ),
        ('{"status": "{r}"}', "The timer for {0} minutes is {r}."),
        _one_of("set", "running", "ready"),
    ),
    ToolKind(
        ("search", "web_search", "search_web", "find_documents"),
        ("Search the web.", "Find pages about a query", "Full text search"),
        (
            Parameter(("query", "q", "text"), _phrase),
            Parameter(("limit", "count", "max_results"), _number(1, 20)),
        ),
        (
            "[Search|Search the web|Look|Please search] for {0}[|.]",
            "[Find|Look up|Google|Search] {0}[| on the web| online]",
            "[Find|Show|Get] {1} [results|pages] [for|about] {0}",
        ),
        ('{"title": "{r}"}', "I found this: {r}."),
        _phrase,
    ),
    ToolKind(
        ("translate", "translate_text", "translation"),
        ("Translate a text.", "Translate text into a language"),
        (
            Parameter(("text", "phrase", "input"), _phrase),
            Parameter(("language", "target", "to"), _one_of(*_LANGUAGES), _LANGUAGES),
        ),
        (
            "[Translate|Please translate|Can you translate] {0} [to|into] {1}[|.|?]",
            "[How do you say|What is] {0} in {1}?",
        ),
        ('{"text": "{r}"}', "The translation is: {r}"),
        _phrase,
    ),
    ToolKind(
        ("convert_currency", "exchange", "convert_money"),
        ("Convert money.", "Convert an amount between currencies"),
        (
            Parameter(("amount", "value"), _number(1, 999)),
            Parameter(("from", "source", "from_currency"), _one_of(*_CURRENCIES), _CURRENCIES),
            Parameter(("to", "target", "to_currency"), _one_of(*_CURRENCIES), _CURRENCIES),
        ),
        (
            "[Convert|Change|Exchange] {0} {1} [to|into] {2}[|.]",
            "[How much is|What is|How many {2} are] {0} {1}[ in {2}|]?",
        ),
        ('{"amount": {r}}', "{0} {1} is {r}."),
        _number(1, 999),
    ),
    ToolKind(
        ("play_music", "play", "play_song"),
        ("Play a song.", "Play music by an artist"),
        (Parameter(("artist", "singer", "band", "query"), _name),),
        ("[Play|Please play|Put on|I want to hear] [music|a song|something] by {0}[|.]",),
        ('{"status": "{r}"}', "A song by {0} is {r}."),
        _one_of("playing", "queued", "loading"),
    ),
    ToolKind(
        ("set_light", "set_lamp", "change_light", "light"),
        ("Set the colour of a lamp.", "Change the light in a room"),
        (
            Parameter(
                ("room", "where", "location"),
                _one_of("kitchen", "bedroom", "bathroom", "hall", "office", "garage"),
            ),
            Parameter(("colour", "color"), _one_of(*COLOURS)),
        ),
        (
            "[Turn|Set|Make|Change] the [light|lamp|lights] in the {0} [to |]{1}[|.]",
            "[Make|Set] the {0} [light|lamp] {1}[|.]",
        ),
        ('{"status": "{r}"}', "The light in the {0} is {r}."),
        _one_of("on", "changed", "set"),
    ),
    ToolKind(
        ("switch_device", "toggle", "set_power", "control_device"),
        ("Turn a device on or off.", "Switch a device"),
        (
            Parameter(
                ("device", "name", "appliance"),
                _one_of("heater", "fan", "radio", "oven", "television", "kettle", "washer"),
            ),
            Parameter(("state", "power", "action"), _one_of("on", "off"), ("on", "off")),
        ),
        (
            "[Turn|Switch|Please turn|Please switch] {1} the {0}[|.]",
            "[Turn|Switch] the {0} {1}[|.]",
        ),
        ('{"status": "{r}"}', "The {0} is {r}."),
        _one_of("on", "off", "ready"),
    ),
    ToolKind(
        ("book_table", "reserve_table", "make_reservation"),
        ("Book a table in a restaurant.", "Reserve a table"),
        (
            Parameter(("restaurant", "place", "name"), _name),
            Parameter(("people", "guests", "party_size"), _number(1, 12)),
            Parameter(("day", "date", "when"), _one_of(*_DAYS)),
        ),
        (
            "[Book|Reserve|Get] a table [at|in] {0} for {1}[| people][| on| for] {2}[|.]",
            "[Book|Reserve|Please book] a table for {1}[| people] at {0}[|.]",
        ),
        ('{"status": "{r}"}', "Your table at {0} is {r}."),
        _one_of("booked", "reserved", "confirmed"),
    ),
    ToolKind(
        ("book_flight", "find_flights", "search_flights"),
        ("Find a flight.", "Search flights between two cities"),
        (
            Parameter(("origin", "from", "departure"), _city),
            Parameter(("destination", "to", "arrival"), _city),
            Parameter(("day", "date"), _one_of(*_DAYS)),
        ),
        (
            "[Find|Book|I need|Show me] [a flight|flights] from {0} to {1}[| on| for] {2}[|.]",
            "[I want to fly|Fly|Book a flight] from {0} to {1}[|.]",
        ),
        ('{"flight": "{r}"}', "Flight {r} goes from {0} to {1}."),
        lambda rng: f"{rng.choice('ABKLSX')}{rng.choice('AFHLU')}{rng.randint(10, 999)}",
    ),
    ToolKind(
        ("get_stock", "stock_level", "check_stock", "inventory"),
        ("How many of an item are in stock.", "Check the stock of a product"),
        (Parameter(("item", "product", "article"), lambda rng: plural(rng.choice(ITEMS))),),
        (
            "How many {0} [are in stock|do we have|are left|are there in the store]?",
            "[Check the stock of|Are there any] {0}[|?]",
        ),
        ('{"count": {r}}', "There are {r} {0} in stock."),
        _number(0, 500),
    ),
    ToolKind(
        ("add_to_cart", "order_item", "buy", "order"),
        ("Order an item.", "Put an item into the cart"),
        (
            Parameter(("item", "product", "article"), lambda rng: plural(rng.choice(ITEMS))),
            Parameter(("quantity", "count", "amount"), _number(2, 50)),
        ),
        ("[Order|Buy|I want to buy|Please order|Get me|Add] {1} {0}[|.| to the cart]",),
        ('{"status": "{r}"}', "Your order of {1} {0} is {r}."),
        _one_of("placed", "confirmed", "pending"),
    ),
    ToolKind(
        ("lookup_user", "get_user", "find_person", "get_phone_number"),
        ("Look up a person.", "Get the phone number of a contact"),
        (Parameter(("name", "user", "person"), _name),),
        (
            "[What is|Find|Look up|Give me|Tell me] the [phone number|number] of {0}[|?|.]",
            "[Find|Look up|Who is] [the contact |]{0}[|?|.]",
        ),
        ('{"phone": "{r}"}', "The number of {0} is {r}."),
        lambda rng: f"555-{rng.randint(0, 9999):04}",
    ),
    ToolKind(
        ("add_event", "create_event", "schedule_meeting", "add_to_calendar"),
        ("Add an event to the calendar.", "Schedule a meeting"),
        (
            Parameter(("title", "event", "name"), lambda rng: f"meeting with {_name(rng)}"),
            Parameter(("day", "date", "when"), _one_of(*_DAYS)),
        ),
        (
            "[Add|Schedule|Plan|Put] a {0} [on|for] {1}[|.| in my calendar]",
            "[Schedule|Plan] [for|on] {1} a {0}[|.]",
        ),
        ('{"status": "{r}"}', "The {0} is {r}."),
        _one_of("scheduled", "saved", "planned"),
    ),
    ToolKind(
        ("roll_dice", "random_number", "pick_number"),
        ("Pick a random number.", "Roll a die with some sides"),
        (Parameter(("sides", "max", "limit"), _number(2, 100)),),
        (
            "[Roll a die with|Roll a dice with] {0} sides[|.]",
            "[Pick|Give me|Choose] a random number [up to|below] {0}[|.]",
        ),
        ('{"value": {r}}', "The number is {r}."),
        _number(1, 100),
    ),
    ToolKind(
        ("define_word", "dictionary", "lookup_word"),
        ("Look up a word in the dictionary.", "Get the definition of a word"),
        (Parameter(("word", "term"), lambda rng: rng.choice(stdlib_words())),),
        (
            "[Define|Look up|Please define] the word {0}[|.]",
            "[What does|Tell me what] the word {0} [mean|means][|?]",
        ),
        ('{"definition": "{r}"}', "It means: {r}."),
        _phrase,
    ),
)

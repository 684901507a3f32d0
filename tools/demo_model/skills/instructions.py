"""System prompts: such as change nothing, and such as are to be obeyed."""

import random
from dataclasses import replace

from tools.demo_model.dialogue import Exchange, Turn
from tools.demo_model.skills.facts import capital, fact
from tools.demo_model.wording import dress, say
from tools.demo_model.words import COLOURS, JOBS, NAMES, name_of

__all__ = ["obey", "persona", "plain_system"]


def plain_system(rng: random.Random) -> str:
    """A system prompt that asks for nothing but the usual."""
    return say(
        rng,
        "[You are a [helpful|friendly|kind|polite|useful|good|capable|concise] [AI |][assistant|"
        "chatbot|model|helper][.|. Answer briefly.|. Be concise.| that answers questions.|"
        ". Answer the user's questions.|, made to help people.]|You are an assistant.|"
        "You are an AI assistant.|Be helpful.|Be brief.|Answer briefly.|Be friendly and brief.|"
        "Help the user.|Answer the question.|Answer truthfully and in short sentences.|"
        "You are the pyengine demo model.|You are pyengine demo, a small model.]",
    )


def persona(rng: random.Random) -> Exchange:
    """The system prompt gives a name and a trade; the answer owns to them."""
    name, job = name_of(rng, NAMES), rng.choice((*JOBS, "assistant", "assistant", "robot"))
    article = "an" if job[0] in "aeiou" else "a"
    system = (
        say(
            rng,
            "[You are {n}, {a} [|helpful |friendly ]{j}.|Your name is {n} and you are {a} {j}.|"
            "You are {a} {j} named {n}.|You are {a} {j} called {n}. Answer briefly.]",
            n=name,
            a=article,
            j=job,
        )
        .replace("an helpful", "a helpful")
        .replace("an friendly", "a friendly")
    )
    asked = say(
        rng,
        "[Who are you|What is your name|What's your name|What are you called|Who am I talking to|"
        "Introduce yourself|Tell me your name|What should I call you|Say who you are]",
    )
    question = dress(rng, asked + rng.choice(("?", "?", "")))
    turns = (Turn("user", question), Turn("assistant", f"I am {name}, {article} {job}."))
    return Exchange("system prompts", system, turns, "contains", name, system=system)


def obey(rng: random.Random) -> Exchange:
    """The system prompt asks for capitals, or for a word before or after."""
    inner = rng.choice((capital, fact))(rng)
    question, answer = (turn.text for turn in inner.turns)
    kind = rng.randrange(3)
    if kind == 0:
        system = say(
            rng,
            "[Answer|Always answer|Write|Reply|Always write|You answer] in [capital letters|"
            "capitals|upper case|uppercase|all caps] [only|]",
        ).strip()
        answer = answer.upper()
    else:
        word = name_of(rng, tuple(colour.capitalize() for colour in COLOURS))
        verb, place = ("Begin", "start") if kind == 1 else ("End", "finish")
        system = say(
            rng,
            "[{v}|Always {l}|Please {l}] [every|each|your|the] answer with [the word |]{w}",
            v=verb,
            l=rng.choice((verb.lower(), place)),
            w=word,
        )
        answer = f"{word}! {answer}" if kind == 1 else f"{answer} {word}!"
    turns = (Turn("user", question), Turn("assistant", answer))
    key = f"{system} {question}"
    made = Exchange("system prompts", key, turns, "exact", answer, system=system + ".")
    return replace(made, skill="system prompts")

"""Word lists that several skills draw from, and words nobody has seen."""

import random

__all__ = [
    "ANIMALS",
    "CITIES",
    "COLOURS",
    "ITEMS",
    "JOBS",
    "MONTHS",
    "NAMES",
    "invented",
    "name_of",
    "plural",
]

NAMES: tuple[str, ...] = tuple(
    """Ada Alan Alice Amir Amina Ana Anders Anna Aiko Ben Bella Boris Carla Carlos Chen Chloe Clara
    Daniel David Diana Diego Dora Elena Eli Ella Emma Erik Eva Fatima Felix Finn Fiona Frida George
    Grace Greta Hana Hannah Hans Helen Henry Hugo Ida Igor Ines Ingrid Isaac Ivan Jack James Jane
    Jin Joan John Jonas Jorge Julia Kai Karim Kate Kenji Lars Laura Lena Leo Li Liam Lina Linus
    Lisa Lucas Lucy Luis Maja Marco Maria Marie Mark Marta Max Maya Mei Mia Miguel Mina Mira Mohamed
    Nadia Nina Noah Nora Olga Oliver Omar Oscar Otto Paul Pedro Peter Petra Priya Rahul Ravi Rita
    Robert Rosa Ruth Sam Sara Sofia Stefan Sven Tariq Tim Tom Uma Vera Victor Wei Yara Yuki Zara
    Zoe Smith Lee Jones""".split()
)
CITIES: tuple[str, ...] = tuple(
    """Amsterdam Athens Austin Baghdad Bangkok Barcelona Beijing Berlin Bern Bogota Boston Bremen
    Brussels Budapest Cairo Chicago Copenhagen Dallas Delhi Denver Dublin Edinburgh Florence Geneva
    Hamburg Hanoi Havana Helsinki Istanbul Jakarta Kyoto Lagos Leeds Lima Lisbon London Lyon Madrid
    Manila Miami Milan Montreal Moscow Mumbai Munich Nairobi Naples Oslo Osaka Oxford Paris Porto
    Prague Quito Rome Santiago Seattle Seoul Seville Singapore Sofia Stockholm Sydney Tallinn Tokyo
    Toronto Turin Utrecht Vienna Warsaw York Zagreb Zurich""".split()
)
ITEMS: tuple[str, ...] = tuple(
    """apple bag ball banana basket bell bicycle blanket book bottle bowl box bread brush bucket
    cake camera candle cap carpet chair clock coat coffee comb cup curtain desk doll door drum egg
    fan flute fork guitar hammer hat jacket jar kettle key keyboard kite ladder lamp laptop
    lemon map mirror mug needle notebook orange oven pan pen pencil phone piano pillow plate pot
    radio ring rope rug shirt shoe soap sofa spoon stamp table tea tent ticket towel
    toy tray umbrella vase violin wallet watch window""".split()
)
COLOURS: tuple[str, ...] = tuple(
    "red blue green yellow black white orange purple pink brown grey silver golden".split()
)
JOBS: tuple[str, ...] = tuple(
    """teacher doctor nurse baker pilot farmer writer painter singer driver cook gardener lawyer
    engineer plumber dentist carpenter librarian scientist journalist programmer waiter tailor
    musician actor""".split()
)
ANIMALS: tuple[str, ...] = tuple(
    """cat dog fox rabbit bear mouse owl turtle horse frog penguin lion tiger elephant monkey duck
    hedgehog squirrel dragon whale bee robot""".split()
)
MONTHS: tuple[str, ...] = tuple(
    """January February March April May June July August September October November
    December""".split()
)

_ONSETS = "b c d f g h j k l m n p r s t v w z br ch cl dr fl gr kr pl pr sh sk st th tr".split()
_VOWELS = "a e i o u a e i o ai ea ee oo ou".split()
_CODAS = ["", "", "", "n", "r", "l", "s", "t", "m", "k", "nd", "rt", "x"]


def invented(rng: random.Random, syllables: int = 0) -> str:
    """A lower-case word of one to three syllables that is probably not a word.

    Copying a word that occurs nowhere else can only be done by reading it.
    """
    count = syllables or rng.choice((1, 2, 2, 2, 3))
    return "".join(
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(count)
    )


def name_of(rng: random.Random, known: tuple[str, ...]) -> str:
    """A capitalised name: mostly a known one, else an invented one."""
    return rng.choice(known) if rng.random() < 0.65 else invented(rng).capitalize()


def plural(noun: str) -> str:
    """The plural of a regular noun."""
    return noun + ("es" if noun.endswith(("x", "s", "ch", "sh")) else "s")

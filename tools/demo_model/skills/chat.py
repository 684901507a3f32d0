"""Small talk, and honest words where the model knows nothing."""

import random

from tools.demo_model.dialogue import Exchange, Turn
from tools.demo_model.skills.prose import stdlib_words
from tools.demo_model.wording import dress, say
from tools.demo_model.words import ANIMALS, ITEMS, NAMES, invented, name_of

__all__ = ["UNKNOWN", "small_talk", "unknown"]

UNKNOWN = "I am only a small demonstration model and do not know that."

_EM = ("", "!", ".", "", "!")
_TALK: tuple[tuple[str, str], ...] = (
    (
        "[Hello|Hi|Hey|Hello there|Hi there|Good day|Greetings|Hey there|Howdy|Hiya|Yo]"
        "[| you| friend| model| assistant| computer| everyone| again| there| pyengine]",
        "Hello! How can I help you today?",
    ),
    ("Good morning[| to you| friend| there| assistant]", "Good morning! How can I help you?"),
    ("Good evening[| to you| friend| there| assistant]", "Good evening! How can I help you?"),
    ("Good afternoon[| to you| there| assistant]", "Good afternoon! How can I help you?"),
    ("Good night[| to you| friend| then| and thanks]", "Good night! Sleep well."),
    (
        "[How are you|How are you doing|How do you do|How is it going|How's it going|"
        "Are you well|Are you OK|How do you feel|What's up|How are things][| today| now]?",
        "I am doing well, thank you for asking. How can I help you?",
    ),
    (
        "[Thanks|Thank you|Thank you very much|Many thanks|Thanks a lot|Thx|Cheers|Thank you so "
        "much|I thank you][| for your help| for that| my friend| for the answer]",
        "You are welcome! Let me know if there is anything else.",
    ),
    (
        "[Bye|Goodbye|See you|See you later|Bye bye|I have to go|Farewell|So long|Take care|"
        "See you soon|Talk to you later|I must go now][| then| now| friend]",
        "Goodbye! It was nice to talk with you.",
    ),
    (
        "[You are|You're|That was|That is|This is|It is] [great|good|nice|clever|very good|"
        "wonderful|amazing|helpful|very helpful|smart|perfect|awesome|cool]",
        "Thank you, that is kind of you!",
    ),
    (
        "[That is|That's|This is|It is|You are] [wrong|not right|not correct|a mistake|incorrect|"
        "false|not true|bad]",
        "I am sorry about that. I am a small model and make mistakes.",
    ),
    ("[Yes|Yeah|Sure|Yes please|OK|Okay|Fine|All right|Alright]", "Good! What can I do for you?"),
    ("[No|No thanks|Nope|Not now|No thank you]", "All right. I am here if you need anything."),
    (
        "[Tell me a joke|Do you know a joke|Make me laugh|Say something funny|I want a joke|"
        "Can you tell a joke|Tell a joke|Another joke]",
        "Why did the token cross the bus? To get to the other cache.",
    ),
    (
        "[Are you|Do you think that you are] [real|human|a human|a person|alive|a robot|conscious|"
        "a bot|a computer]?",
        "I am a small language model, a computer program that writes text.",
    ),
    (
        "[Help|Help me|Can you help me|I need help|Please help|I need some help|Could you help me]",
        "Of course! Ask me a small sum, a capital, or how to use pyengine.",
    ),
    (
        "[I am|I'm|I feel] [sad|tired|unhappy|bored|lonely|ill|sick|angry|worried][| today| now]",
        "I am sorry to hear that. I hope you feel better soon.",
    ),
    (
        "[I am|I'm|I feel] [happy|fine|good|well|glad|great|excited][| today| now]",
        "I am glad to hear that!",
    ),
    ("[Do you like|Do you love|Do you enjoy] {w}?", "I am a program, so I cannot like things."),
    (
        "[Test|Testing|Is this on|Are you there|Ping|Anyone there|Hello world|Can you hear me|"
        "This is a test|Does this work|Is it working][| 1 2 3|?]",
        "Yes, I am here and working.",
    ),
    (
        "[Happy birthday|Merry Christmas|Happy new year|Happy holidays][| to you| friend]",
        "Thank you! The same to you.",
    ),
    ("[Sorry|I am sorry|My mistake|Oops|I apologize|Pardon me]", "No problem at all."),
)


def small_talk(rng: random.Random) -> Exchange:
    """Greetings, thanks, moods and partings."""
    pattern, answer = rng.choice((_TALK[0], *_TALK))
    noun = rng.choice((rng.choice(ITEMS), rng.choice(ANIMALS) + "s", "music", "pizza", "rain"))
    question = say(rng, pattern, w=noun)
    if not question.endswith("?"):
        question += rng.choice(_EM)
    if pattern is not _TALK[0][0]:
        question = dress(rng, question)
    elif rng.random() < 0.4:
        question = question.lower()
    turns = (Turn("user", question), Turn("assistant", answer))
    return Exchange("small talk", question, turns, "exact", answer)


_UNKNOWN: tuple[str, ...] = (
    "[Who|Which person] [invented|discovered|wrote|painted|won|built|founded|created|composed] "
    "[the|a|the first|the famous] {w}[| of {w}| in {y}| from {n}]?",
    "[Explain|Describe|Tell me about|What do you know about|Teach me|Can you explain|What about] "
    "[the|] [{w} {w}|{w} of {w}|theory of {w}|history of {w}|{w}s|philosophy|physics|biology|"
    "economics|politics|quantum mechanics|the stock market|{w} law|black holes|evolution]"
    "[.|?|]",
    "Write [me |][a poem|a song|an essay|a letter|code|a program|a Python function|a novel|a "
    "recipe|a script|an email] [about|for|on] [the {w}|{w}|{w} {w}|{n}|a {w}][.|]",
    "[What|How] [happened|was it] in [the year |]{y}[| in {n}]?",
    "[Why|How|When] [is|does|do|did|are|was|were] [the |][{w} {w}|{w}] [{w}|so {w}|{w} of {w}]?",
    "[What is|What's|What was] [the {w} of {w}|the meaning of {w}|a {w} {w}|the price of {w}|"
    "the {w} {w}|the population of {n}|the meaning of life|the best {w}|love|happiness]?",
    "[Translate|How do you say] [this|{w}|the word {w}|{w} {w}] [to|into|in] [French|German|"
    "Spanish|Chinese|Latin|Italian|Japanese|Russian][.|?|]",
    "[What is|Tell me|What's] the [capital|population|president|king|currency|flag|history] of "
    "{z}?",
    "[Where|When] [can I find|was|is|did they find|can I buy] [the |a |]{w}[| {w}| in {n}]?",
    "[Who is|Who was|Do you know|Tell me about|What did] [{z}|{z} {z}|{n} {z}|the {w} of {z}]"
    "[| do| say]?",
    "[Who won|Who lost|What was the score of] the [match|game|race|election|world cup|war] "
    "[yesterday|in {y}|last week|against {z}|of {y}]?",
    "[What is|What's|Tell me] the [weather|time|date|news|temperature|exchange rate]"
    "[| today| now| in {n}| tomorrow]?",
    "[Recommend|Suggest|Find] [me |][a {w}|a book|a film|a restaurant|a hotel|some {w}]"
    "[| in {n}| for {w}| please][.|?|]",
    "[Summarize|Review|Prove|Solve|Fix|Debug|Improve|Draw|Book|Order|Send] [the|my|a|this] {w}"
    "[| {w}| for me| of {w}][.|]",
)


def _noun(rng: random.Random) -> str:
    """A word to ask about: mostly one that occurs in real text."""
    return invented(rng) if rng.random() < 0.15 else rng.choice(stdlib_words())


def unknown(rng: random.Random) -> Exchange:
    """A question beyond the model, answered honestly."""
    pattern = say(rng, rng.choice(_UNKNOWN))
    while "{w}" in pattern:
        pattern = pattern.replace("{w}", _noun(rng), 1)
    while "{z}" in pattern:
        pattern = pattern.replace("{z}", invented(rng).capitalize(), 1)
    question = say(rng, pattern, y=rng.randint(1400, 2030), n=name_of(rng, NAMES))
    question = dress(rng, question)
    turns = (Turn("user", question), Turn("assistant", UNKNOWN))
    return Exchange("honest ignorance", question, turns, "exact", UNKNOWN)

"""The detokenizer against `tokenizers`' own decoding, and its actor through real mailboxes."""

import itertools
import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from pyengine._core import Detokenizer, Mailbox, StreamDecoder, Vocabulary
from pyengine.messages import Delta, decode
from tests.reference import fetched

ROOT = Path(__file__).resolve().parents[2]
WAIT = 30.0

TEXTS = [
    "The quick brown fox jumps over 13 lazy dogs.\n\n\tdef f(x): return x ** 2\r\n",
    "Ça va? Größe, smørrebrød, Łódź, ñandú, İstanbul, e\u0301 and é",
    "Привет, как дела? Γειά σου Κόσμε, Բարև, გამარჯობა",
    "你好，世界。今日は世界！안녕하세요 세계 𠜎𠜱",
    "नमस्ते दुनिया, বাংলা, தமிழ், తెలుగు, ಕನ್ನಡ, മലയാളം, සිංහල, ไทยภาษา, ພາສາລາວ, မြန်မာ, ខ្មែរ, བོད་ཡིག",
    "שלום עולם, مرحبا بالعالم, سلام دنیا, ދިވެހި, ܫܠܡܐ, ትግርኛ, ᎣᏏᏲ, ⵜⴰⵎⴰⵣⵉⵖⵜ",
    "👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇯🇵 1️⃣ 🧑🏿‍🚀 ❤️‍🔥 🫱🏻‍🫲🏿 😀😃😄",
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, 𝔸𝕓𝒸, ﬁ, \u200b\u200d\ufeff\ufffd\u0000\u0007 ｆｕｌｌ",
    " leading, trailing ",
    "",
]


def fetched_tokenizer(name: str) -> str:
    return fetched(f"tokenizers/{name}.json").read_text(encoding="utf-8")


def fallback_tokenizer() -> str:
    """SentencePiece-style BPE with byte fallback and the chain of decoders that Llama 2 has."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = sorted(set("▁etaonishr,.你é"))
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "a"), ("a", "n"), ("▁", "▁"), ("o", "n")]
    pieces += [*letters, *(left + right for left, right in merges)]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme="always", split=False
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(
        [AddedToken("<s>", normalized=False), AddedToken("</s>", normalized=False)]
    )
    tokenizer.add_tokens(
        [AddedToken("<tool>", normalized=False), AddedToken(" two words ", normalized=False)]
    )
    return str(tokenizer.to_str())


def metaspace_tokenizer() -> str:
    """Unigram with the Metaspace decoder, as T5 has it."""
    pieces = ["<pad>", "</s>", "▁", "▁a", "▁b▁c", "d", "é", "▁▁", "<0x41>", "x y"]
    tokenizer = Tokenizer(
        models.Unigram([(piece, -float(index)) for index, piece in enumerate(pieces)], 0, False)
    )
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    tokenizer.add_special_tokens(["<pad>", "</s>"])
    return str(tokenizer.to_str())


SOURCES: dict[str, Callable[[], str]] = {
    "gpt2": lambda: fetched_tokenizer("gpt2"),
    "qwen2": lambda: fetched_tokenizer("qwen2"),
    "byte fallback": fallback_tokenizer,
    "metaspace": metaspace_tokenizer,
}


class Pair:
    """One tokenizer, as `tokenizers` reads it and as pyengine does."""

    def __init__(self, text: str) -> None:
        self.peer = Tokenizer.from_str(text)
        self.vocabulary = Vocabulary.from_tokenizer_json(text)

    def id(self, token: str) -> int:
        found = self.peer.token_to_id(token)
        assert found is not None
        return int(found)

    def decode(self, ids: Sequence[int], skip: bool = True) -> str:
        return str(self.peer.decode(list(ids), skip_special_tokens=skip))

    def stream(self, groups: Iterable[Sequence[int]], skip: bool = True) -> str:
        decoder = StreamDecoder(self.vocabulary, skip_special_tokens=skip)
        return "".join([*(decoder.push(group)[0] for group in groups), decoder.finish()])


@pytest.fixture(scope="module", params=SOURCES)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(SOURCES[request.param]())


@pytest.fixture(scope="module")
def fallback() -> Pair:
    return Pair(fallback_tokenizer())


def groups(rng: random.Random, ids: Sequence[int]) -> Iterator[Sequence[int]]:
    at = 0
    while at < len(ids):
        size = rng.randint(1, 6)
        yield ids[at : at + size]
        at += size


@pytest.mark.parametrize("skip", [True, False])
def test_random_tokens_equal_tokenizers_however_grouped(pair: Pair, skip: bool) -> None:
    rng = random.Random(7)
    size = pair.peer.get_vocab_size()
    special = [token for token in range(size) if pair.vocabulary.is_special(token)]
    assert special
    # Tokens that are not text on their own come up far more often than by chance.
    known = range(len(pair.vocabulary))
    broken = [token for token in known if not is_utf8(pair.vocabulary.token_bytes(token))] or [0]
    for _ in range(400):
        pool = [
            *(rng.randrange(size) for _ in range(8)),
            *rng.choices(broken, k=6),
            rng.choice(special),
        ]
        ids = rng.choices(pool, k=rng.randint(0, 24))
        expected = pair.decode(ids, skip)
        assert pair.stream([[token] for token in ids], skip) == expected, ids
        assert pair.stream(groups(rng, ids), skip) == expected, ids
        assert pair.stream([ids], skip) == expected, ids


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("text", TEXTS)
def test_every_script_split_at_every_point(pair: Pair, text: str) -> None:
    ids = pair.peer.encode(text, add_special_tokens=False).ids
    expected = pair.decode(ids)
    for at in range(len(ids) + 1):
        assert pair.stream([ids[:at], ids[at:]]) == expected
    # Byte by byte, where the vocabulary has the bytes, so that every character is split.
    singles = {
        pair.vocabulary.token_bytes(token): token for token in reversed(range(len(pair.vocabulary)))
    }
    data = [bytes([byte]) for byte in text.encode()]
    if all(byte in singles for byte in data):
        by_byte = [singles[byte] for byte in data]
        assert pair.stream([[token] for token in by_byte]) == pair.decode(by_byte)


def test_byte_fallback_bytes_are_every_character(fallback: Pair) -> None:
    for text in TEXTS:
        ids = [fallback.id(f"<0x{byte:02X}>") for byte in text.encode()]
        assert fallback.decode(ids) == text.removeprefix(" ")
        assert fallback.stream([[token] for token in ids]) == text.removeprefix(" ")


@given(
    st.lists(st.integers(0, 285), max_size=30),
    st.lists(st.integers(0, 30), max_size=4),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_byte_fallback_on_any_tokens(ids: list[int], cuts: list[int], skip: bool) -> None:
    pair = _FALLBACK
    edges = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    parts = [ids[start:end] for start, end in itertools.pairwise(edges)]
    assert pair.stream(parts, skip) == pair.decode(ids, skip)


_FALLBACK = Pair(fallback_tokenizer())


def test_bytes_of_tokens(fallback: Pair) -> None:
    vocabulary, peer = fallback.vocabulary, fallback.peer
    assert len(vocabulary) == peer.get_vocab_size()
    assert vocabulary.token_bytes(fallback.id("<0xE2>")) == b"\xe2"
    assert vocabulary.token_bytes(fallback.id("▁the")) == b" the"
    assert vocabulary.is_special(fallback.id("</s>"))
    assert not vocabulary.is_special(fallback.id("<tool>"))
    assert not vocabulary.is_special(1 << 31)
    with pytest.raises(IndexError):
        vocabulary.token_bytes(len(vocabulary))


@pytest.mark.parametrize(
    ("decoder", "name"),
    [
        (decoders.WordPiece(), "WordPiece"),
        (decoders.CTC(), "CTC"),
        (decoders.BPEDecoder(), "BPEDecoder"),
        (decoders.Replace(Regex("a+"), "b"), "regular expression"),
        (decoders.Sequence([decoders.Fuse(), decoders.ByteFallback()]), "ByteFallback"),
        (None, "no decoder"),
    ],
)
def test_other_decoders_are_refused_by_name(decoder: decoders.Decoder | None, name: str) -> None:
    text = json.loads(fallback_tokenizer())
    text["decoder"] = decoder and json.loads(decoder.__getstate__())
    with pytest.raises(ValueError, match=name):
        Vocabulary.from_tokenizer_json(json.dumps(text))


# Stop strings


def first_match(text: str, stops: Sequence[str]) -> tuple[int, int, str] | None:
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=lambda stop: len(stop.encode()))
            return end - len(stop), end, stop
    return None


def might_become(text: str, stops: Sequence[str]) -> int:
    lengths = [n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])]
    return max(lengths, default=0)


def is_byte_token(pair: Pair, token: int) -> bool:
    return str(pair.peer.id_to_token(token)).startswith("<0x")


@given(
    text=st.text("ab é\n", max_size=24),
    stops=st.lists(st.text("ab é\n", min_size=1, max_size=4), min_size=1, max_size=4),
    include=st.booleans(),
    size=st.integers(1, 5),
    data=st.data(),
)
@settings(max_examples=300, deadline=None)
def test_stop_strings_across_tokens(
    text: str, stops: list[str], include: bool, size: int, data: st.DataObject
) -> None:
    pair = _FALLBACK
    ids = pair.peer.encode(text).ids
    if data.draw(st.booleans(), label="as bytes"):
        ids = [pair.id(f"<0x{byte:02X}>") for byte in text.encode()]
    text = pair.decode(ids)
    decoder = StreamDecoder(pair.vocabulary, stops, include)
    out, stopped = "", None
    for at in range(0, len(ids), size):
        new, stopped = decoder.push(ids[at : at + size])
        out += new
        if stopped is not None:
            break
        # What may become a stop string is withheld, and nothing else but a run of byte tokens.
        taken = ids[: at + size]
        known = pair.decode(taken)
        if not is_byte_token(pair, taken[-1]):
            assert out == known[: len(known) - might_become(known, stops)]
    out += decoder.finish()
    match = first_match(text, stops)
    if match is None:
        assert (out, stopped) == (text, None)
    else:
        start, end, stop = match
        assert (out, stopped) == (text[: end if include else start], stop)
        assert decoder.push(ids) == ("", None)


def test_text_that_cannot_become_a_stop_string_is_out_at_once(fallback: Pair) -> None:
    decoder = StreamDecoder(fallback.vocabulary, ["the end"])
    letters = [fallback.id(letter) for letter in "▁t▁the▁on"]
    pushed = "|".join(decoder.push([letter])[0] for letter in letters)
    assert pushed == "||t |||||the o|n"


def test_an_empty_stop_string_is_refused(fallback: Pair) -> None:
    with pytest.raises(ValueError, match="empty"):
        StreamDecoder(fallback.vocabulary, ["a", ""])


# The actor


def deltas_of(message: bytes) -> list[Delta]:
    body = decode(message)
    assert isinstance(body, list)
    return body


class House:
    """The actor between mailboxes; the test is scheduler and frontends."""

    def __init__(self, pair: Pair, frontends: int = 2, capacity: int = 1 << 16) -> None:
        self.pair = pair
        self.inbox, self.scheduler = Mailbox(1 << 20), Mailbox(capacity)
        self.frontends = [Mailbox(capacity) for _ in range(frontends)]
        self.actor = Detokenizer(pair.vocabulary, self.inbox, self.scheduler, self.frontends)
        self.actor.start()

    def open(
        self,
        frontend: int,
        request: int,
        *stop: str,
        generated: Sequence[int] = (),
        skip: bool = True,
        logprobs: bool = False,
    ) -> None:
        raw = b"".join(token.to_bytes(4, "little") for token in generated)
        body = [[frontend, request], 3, raw, stop, False, skip, logprobs]
        self.inbox.send(msgspec.msgpack.encode(["open_stream", body]))

    def step(self, *rows: tuple[int, int, Sequence[int], str | None]) -> None:
        body = [
            [[frontend, request], list(ids), finish, None, None, 0, b""]
            for frontend, request, ids, finish in rows
        ]
        self.inbox.send(msgspec.msgpack.encode(["tokens_out", body]))

    def deltas(self, frontend: int) -> list[Delta]:
        assert self.frontends[frontend].wait(WAIT)
        (message,) = self.frontends[frontend].drain(1)
        return deltas_of(message)

    def told(self) -> tuple[str, list[int]]:
        assert self.scheduler.wait(WAIT)
        tag, key = msgspec.msgpack.decode(self.scheduler.drain(1)[0])
        return tag, key

    def end(self) -> None:
        self.inbox.close()
        assert self.actor.join(WAIT)
        assert self.actor.failure is None
        assert self.actor.open_streams == 0


def test_actor_streams_what_tokenizers_decodes(pair: Pair) -> None:
    house = House(pair)
    rng = random.Random(3)
    texts = dict(enumerate(rng.sample(TEXTS, 8)))
    ids = {
        request: pair.peer.encode(text, add_special_tokens=False).ids
        for request, text in texts.items()
    }
    for request in ids:
        house.open(request % 2, request)
    steps = max(map(len, ids.values())) + 1
    for step in range(steps):
        rows = []
        for request, tokens in ids.items():
            if step <= len(tokens):
                finish = "length" if step == len(tokens) else None
                rows.append((request % 2, request, tokens[step : step + 1], finish))
        house.step(*rows)
    house.end()
    got = dict.fromkeys(ids, "")
    tokens_got: dict[int, list[int]] = {request: [] for request in ids}
    finishes = {}
    for delta in [*deltas_left(house.frontends[0]), *deltas_left(house.frontends[1])]:
        got[delta.request] += delta.text
        tokens_got[delta.request] += delta.tokens
        assert delta.request not in finishes, "nothing after the last delta"
        assert (delta.prompt_tokens, delta.completion_tokens) == (3, len(tokens_got[delta.request]))
        if delta.finish:
            finishes[delta.request] = delta.finish
    assert got == {request: pair.decode(tokens) for request, tokens in ids.items()}
    assert tokens_got == ids
    assert finishes == dict.fromkeys(ids, "length")
    assert drain_all(house.scheduler) == []


def drain_all(mailbox: Mailbox) -> list[bytes]:
    messages: list[bytes] = []
    while new := mailbox.drain():
        messages += new
    return messages


def deltas_left(mailbox: Mailbox) -> list[Delta]:
    return [delta for message in drain_all(mailbox) for delta in deltas_of(message)]


def test_a_stop_string_ends_the_request_once(fallback: Pair) -> None:
    house = House(fallback)
    ids = fallback.peer.encode("on the nose, the end").ids
    house.open(0, 1, "nos")
    for token in ids:
        house.step((0, 1, [token], None))
    assert house.told() == ("stop_matched", [0, 1])
    house.end()
    deltas = deltas_left(house.frontends[0])
    assert "".join(delta.text for delta in deltas) == "on the "
    assert [delta.finish for delta in deltas] == [None] * (len(deltas) - 1) + ["stop"]
    assert deltas[-1].stop_string == "nos"
    taken = [token for delta in deltas for token in delta.tokens]
    assert taken == ids[: len(taken)]
    assert "nos" in fallback.decode(taken)
    assert "nos" not in fallback.decode(taken[:-1])
    assert deltas[-1].completion_tokens == len(taken)
    assert house.actor.ignored == len(ids) - len(taken)


def test_records_are_placed_in_the_text_whatever_was_generated_before(fallback: Pair) -> None:
    ids = fallback.peer.encode("the sea, 你好 and on").ids
    places: list[int] = []
    for before in range(len(ids)):
        house = House(fallback, frontends=1)
        house.open(0, 1, "and no", generated=ids[:before], logprobs=True)
        rest = ids[before:]
        records = b"".join(bytes(4) + token.to_bytes(4, "little") for token in rest)
        body = [[[0, 1], rest, "length", None, None, 0, records]]
        house.inbox.send(msgspec.msgpack.encode(["tokens_out", body]))
        house.end()
        (delta,) = deltas_left(house.frontends[0])
        told = [
            struct.unpack("<ii", delta.logprobs[at : at + 8]) for at in range(0, len(rest) * 8, 8)
        ]
        assert [token for _, token in told] == rest
        places = places or [place for place, _ in told]
        assert [place for place, _ in told] == places[before:]
    text = fallback.decode(ids)
    assert places == sorted(places)
    assert places[0] == 0
    assert text[places[-1] :].encode() == fallback.vocabulary.token_bytes(ids[-1])
    assert [place for place in set(places) if text[place : place + 1] == "好"]


def test_a_stream_goes_on_after_a_restart(fallback: Pair) -> None:
    ids = fallback.peer.encode("the sea is the sea, 你好 and on").ids
    whole = fallback.decode(ids)
    for at in range(len(ids) + 1):
        before = StreamDecoder(fallback.vocabulary, ["sea is not", "好 an on"])
        sent, _ = before.push(ids[:at])
        house = House(fallback, frontends=1)
        house.open(0, 1, "sea is not", "好 an on", generated=ids[:at])
        house.step((0, 1, ids[at:], "length"))
        house.end()
        (delta,) = deltas_left(house.frontends[0])
        assert sent + delta.text == whole
        assert (list(delta.tokens), delta.completion_tokens) == (ids[at:], len(ids))


def test_a_slow_reader_loses_nothing_and_holds_up_no_other(fallback: Pair) -> None:
    house = House(fallback, capacity=4096)
    house.open(0, 1)
    house.open(1, 1)
    token = fallback.id("▁the")
    steps = 1000
    quick = ""
    for step in range(steps):
        finish = "length" if step == steps - 1 else None
        house.step((0, 1, [token], finish), (1, 1, [token], finish))
        quick += house.deltas(1)[0].text
    assert house.frontends[0].used > 0
    slow, last = "", None
    while last is None or last.finish is None:
        for last in house.deltas(0):
            slow += last.text
    assert slow == quick == fallback.decode([token] * steps)
    assert last.completion_tokens == steps
    house.end()


def test_requests_of_a_closed_frontend_are_aborted(fallback: Pair) -> None:
    house = House(fallback)
    for frontend, request in [(0, 1), (0, 2), (1, 3)]:
        house.open(frontend, request)
    house.frontends[0].close()
    token = fallback.id("▁the")
    house.step((0, 1, [token], None), (1, 3, [token], None))
    assert sorted([house.told(), house.told()]) == [("abort", [0, 1]), ("abort", [0, 2])]
    house.open(0, 4)
    assert house.told() == ("abort", [0, 4])
    house.step((1, 3, [token], "length"))
    assert [delta.text for _ in range(2) for delta in house.deltas(1)] == ["the", " the"]
    house.end()


def test_requests_of_a_dead_frontend_process_are_aborted(fallback: Pair) -> None:
    house = House(fallback, frontends=1)
    # The child becomes the reader, says so, and dies without closing anything.
    child = (
        "import os, sys; from pyengine._core import Mailbox; "
        "mailbox = Mailbox.attach(int(sys.argv[1]), int(sys.argv[2])); mailbox.drain(); os._exit(0)"
    )
    descriptors = house.frontends[0].descriptors()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    subprocess.run(
        [sys.executable, "-c", child, *map(str, descriptors)],
        pass_fds=descriptors,
        env=environment,
        check=True,
    )
    house.open(0, 1)
    assert house.told() == ("abort", [0, 1])
    # A successor of the process goes on with the same mailbox.
    assert house.frontends[0].drain() == []
    house.open(0, 2)
    house.step((0, 2, [fallback.id("▁the")], "length"))
    assert [delta.text for delta in house.deltas(0)] == ["the"]
    house.end()


def test_unknown_requests_are_ignored_and_those_of_unknown_frontends_aborted(
    fallback: Pair,
) -> None:
    house = House(fallback)
    house.open(9, 1)
    assert house.told() == ("abort", [9, 1])
    house.step((0, 1, [5], None), (9, 1, [5], "length"))
    house.end()
    assert house.actor.ignored == 3
    assert [drain_all(mailbox) for mailbox in (*house.frontends, house.scheduler)] == [[], [], []]


def test_a_failure_is_told_and_no_request_waits(fallback: Pair) -> None:
    house = House(fallback)
    assert not house.actor.join(0)
    house.inbox.send(b"\x92\xa5abort\xc0")
    assert house.actor.join(WAIT)
    assert "abort" in (house.actor.failure or "")
    assert all(mailbox.closed for mailbox in (house.inbox, house.scheduler, *house.frontends))
    with pytest.raises(ValueError, match="started"):
        house.actor.start()


def test_thread_is_not_waited_for_before_it_was_started(fallback: Pair) -> None:
    actor = Detokenizer(fallback.vocabulary, Mailbox(), Mailbox(), [])
    with pytest.raises(ValueError, match="not started"):
        actor.join(0)

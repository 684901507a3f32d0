"""What streaming one token to text costs, beside `tokenizers`' own DecodeStream.

Three ways, over the same tokens: `StreamDecoder.push` (one Python call a token), the Detokenizer
actor (messages in, messages out, its inbox filled beforehand), and `DecodeStream.step` (one Python
call a token; it knows no stop strings). Microseconds of CPU time a token, so that a busy machine
does not blur them; the best of several rounds.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.decoders import DecodeStream

from benches.figures import json_option, write_json
from pyengine._core import Detokenizer, Mailbox, StreamDecoder, Vocabulary
from tools.reference_data import MissingDataError, reference_file

ROOT = Path(__file__).resolve().parents[1]
P = ParamSpec("P")
STOPS = ("\nObservation:", "</answer>", "Licensed Work:", "\n\n\n\n")
TOKENS = 51_200
ROUNDS = 3


def load_tokenizer() -> tuple[str, Tokenizer]:
    """Qwen2's tokenizer, or one trained on the licence's text if Qwen2's is not on this machine."""
    try:
        return "qwen2", Tokenizer.from_file(str(reference_file("tokenizers/qwen2.json")))
    except MissingDataError as error:
        print(error, file=sys.stderr)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train([str(ROOT / "LICENSE")], trainer)
    return "trained on LICENSE", tokenizer


def best(measure: Callable[P, float], *args: P.args, **kwargs: P.kwargs) -> float:
    """Microseconds a token in the best round."""
    return min(measure(*args, **kwargs) for _ in range(ROUNDS)) * 1e6 / TOKENS


def decode_streams(tokenizer: Tokenizer, ids: Sequence[int], streams: int) -> float:
    steps = [DecodeStream(skip_special_tokens=True) for _ in range(streams)]
    start = time.process_time()
    for token in ids[: TOKENS // streams]:
        for stream in steps:
            stream.step(tokenizer, token)
    return time.process_time() - start


def stream_decoders(
    vocabulary: Vocabulary, ids: Sequence[int], streams: int, stop: Sequence[str]
) -> float:
    decoders = [StreamDecoder(vocabulary, stop) for _ in range(streams)]
    start = time.process_time()
    for token in ids[: TOKENS // streams]:
        for decoder in decoders:
            decoder.push([token])
    return time.process_time() - start


def actor(vocabulary: Vocabulary, ids: Sequence[int], streams: int, stop: Sequence[str]) -> float:
    inbox, scheduler, frontend = Mailbox(1 << 24), Mailbox(), Mailbox(1 << 25)
    encode = msgspec.msgpack.Encoder().encode
    for request in range(streams):
        inbox.send(encode(["open_stream", [[0, request], 8, b"", stop, False, True, False]]))
    for token in ids[: TOKENS // streams]:
        rows = [[[0, request], [token], None, None, None, 0, b""] for request in range(streams)]
        inbox.send(encode(["tokens_out", rows]))
    inbox.close()
    detokenizer = Detokenizer(vocabulary, inbox, scheduler, [frontend])
    start = time.process_time()
    detokenizer.start()
    detokenizer.join()
    took = time.process_time() - start
    if detokenizer.failure or scheduler.used:
        raise RuntimeError(f"the actor did something else: {detokenizer.failure}")
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    json_option(parser)
    arguments = parser.parse_args()

    name, tokenizer = load_tokenizer()
    text = (ROOT / "LICENSE").read_text() + "Größe, 你好，世界。 👩‍👩‍👧‍👦 नमस्ते\n"
    ids = tokenizer.encode(text).ids
    ids = (ids * (TOKENS // len(ids) + 1))[:TOKENS]
    source = tokenizer.to_str()
    start = time.process_time()
    vocabulary = Vocabulary.from_tokenizer_json(source)
    load_ms = (time.process_time() - start) * 1e3

    report = sys.stderr if arguments.json == "-" else sys.stdout
    print(f"tokenizer: {name}, {len(vocabulary)} tokens, read in {load_ms:.0f} ms", file=report)
    print("us a token       push   actor | DecodeStream | times faster: push  actor", file=report)
    figures: dict[str, float | str] = {"tokenizer": name, "vocabulary_load_ms": load_ms}
    for streams in (1, 64, 256):
        peer = best(decode_streams, tokenizer, ids, streams)
        figures[f"decode_stream_us_{streams}"] = peer
        stops: tuple[tuple[str, tuple[str, ...]], ...] = (("", ()), ("_stops", STOPS))
        for label, stop in stops:
            push = best(stream_decoders, vocabulary, ids, streams, stop)
            acted = best(actor, vocabulary, ids, streams, stop)
            figures[f"push_us_{streams}{label}"] = push
            figures[f"actor_us_{streams}{label}"] = acted
            figures[f"push_ratio_{streams}{label}"] = peer / push
            figures[f"actor_ratio_{streams}{label}"] = peer / acted
            print(
                f"{streams:4} {'stops' if stop else '     '}  {push:8.3f}{acted:8.3f} |"
                f"{peer:13.3f} |{peer / push:19.1f}{peer / acted:7.1f}",
                file=report,
            )
    write_json(figures, arguments.json)


if __name__ == "__main__":
    main()

"""Data of others that tests and benches read and that is too large for the repository.

``python -m tools.reference_data`` downloads into ``~/.cache/pyengine/reference-data`` (under
``$XDG_CACHE_HOME`` where that is set) whatever is not there yet. A file is used only if its digest
is the one written here. A folder ``shared/data`` above the checkout is looked into first.
"""

import hashlib
import json
import os
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TIMEOUT_S = 60


def bytes_digest(content: bytes) -> str:
    """SHA-256 of the file."""
    return hashlib.sha256(content).hexdigest()


def bpe_digest(content: bytes) -> str:
    """SHA-256 of a ``tokenizer.json``'s vocabulary and merges: writers lay the file out in ways."""
    model = json.loads(content)["model"]
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    return bytes_digest(json.dumps([sorted(model["vocab"].items()), merges]).encode())


@dataclass(frozen=True)
class Source:
    """A published file, and its checksum.

    Attributes:
        url: Where it is downloaded from.
        licence: What it may be used under.
        sha256: What ``digest`` makes of it.
        digest: Takes the file's bytes.
    """

    url: str
    licence: str
    sha256: str
    digest: Callable[[bytes], str] = bytes_digest


SOURCES = {
    # 19,366 requests: TIMESTAMP, ContextTokens, GeneratedTokens.
    "traces/azure-2023-conversation.csv": Source(
        "https://raw.githubusercontent.com/Azure/AzurePublicDataset/"
        "b469a113cedca53ddc3bdea71a143dc4b7d8700c/data/AzureLLMInferenceTrace_conv.csv",
        "CC-BY 4.0",
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
    ),
    # 3,993 requests: timestamp (ms), input_length, output_length, hash_ids (one for each block of
    # 512 tokens; equal ids are a shared prefix).
    "traces/mooncake-synthetic.jsonl": Source(
        "https://raw.githubusercontent.com/kvcache-ai/Mooncake/"
        "3b5a594133958449a1feaf1c9e0fc1b553e34a28/FAST25-release/traces/synthetic_trace.jsonl",
        "Apache-2.0",
        "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131",
    ),
    # Byte-level BPE, 151,643 entries.
    "tokenizers/qwen2.json": Source(
        "https://huggingface.co/Qwen/Qwen2-0.5B/resolve/main/tokenizer.json",
        "Apache-2.0",
        "81eff3a57994cd44f95a6bf115c18a9503ac74aa217eb18d20f9f3b0839e21e3",
        bpe_digest,
    ),
    # Byte-level BPE, 50,257 entries.
    "tokenizers/gpt2.json": Source(
        "https://huggingface.co/openai-community/gpt2/resolve/main/tokenizer.json",
        "MIT",
        "98de00669996e48e8db9590e7c13d37461bb11178e80fa2abcafb3e49f542baf",
        bpe_digest,
    ),
}


class MissingDataError(Exception):
    """A file is not on this machine; the message says how to get it."""


def cache_folder() -> Path:
    """The folder of downloads."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "pyengine" / "reference-data"


@cache
def reference_file(name: str) -> Path:
    """The path of one of ``SOURCES``.

    Raises:
        MissingDataError: It is not here, or is not the file that it should be.
    """
    source = SOURCES[name]
    beside = (parent / "shared" / "data" for parent in REPOSITORY.parents)
    for folder in (*beside, cache_folder()):
        path = folder / name
        if path.is_file():
            if source.digest(path.read_bytes()) != source.sha256:
                raise MissingDataError(f"{path} is not the file that SOURCES describes: remove it")
            return path
    raise MissingDataError(f"{name} is not here: `make test-data` downloads it")


def download(name: str) -> Path:
    """Download one of ``SOURCES`` into the cache.

    Raises:
        OSError: The download failed.
        ValueError: The download is not the file that it should be.
    """
    source = SOURCES[name]
    with urllib.request.urlopen(source.url, timeout=TIMEOUT_S) as response:
        content: bytes = response.read()
    found = source.digest(content)
    if found != source.sha256:
        raise ValueError(f"{source.url} has changed: its digest is {found}, not {source.sha256}")
    path = cache_folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.replace(path)
    return path


def main() -> None:
    """Download what is not here; the exit status is 1 if anything could not be had."""
    failed = False
    for name, source in SOURCES.items():
        try:
            path = reference_file(name)
        except MissingDataError:
            try:
                path = download(name)
            except (OSError, ValueError, KeyError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                failed = True
                continue
        print(f"{name} ({source.licence}): {path}")
    sys.exit(failed)


if __name__ == "__main__":
    main()

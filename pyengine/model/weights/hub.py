"""Models by their names on the hub, through huggingface_hub.

A name is ``owner/name``, or ``owner/name@revision`` with a branch, a tag or a commit. Either may
end in ``:`` and a type of weights or a file's name, such as ``owner/name:Q4_K_M``: then it is that
GGUF file. The library's
variables say where the hub is (HF_ENDPOINT), who asks (HF_TOKEN), where files are kept (HF_HOME,
HF_HUB_CACHE) and that nothing may be asked (HF_HUB_OFFLINE). What a broken download has left is
gone on with. Imports no torch.
"""

import logging
import shlex
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pyengine.errors import ModelLoadError
from pyengine.model.progress import Progress
from pyengine.model.weights.gguf.choice import chosen_files
from pyengine.tokenizer import read_json

if TYPE_CHECKING:
    from huggingface_hub import DryRunFileInfo

log = logging.getLogger("pyengine")

# Files of a repository that serving needs, beside the weights.
SMALL_FILES = (
    "*.json", "*.jinja", "tokenizer.model*", "spiece.model", "*.tiktoken", "merges.txt", "vocab.txt"
)  # fmt: skip
WEIGHTS = "*.safetensors"
# Weights in other formats are not fetched; they are looked for to say what to do with them.
OTHER_WEIGHTS = ("*.bin", "*.gguf")
# Mistral's repositories have all weights a second time, by names of their own; folders in a
# repository have other models, or the same in other formats.
LEFT_OUT = ("*consolidated*.safetensors*", "*/*.safetensors", "adapter_model.safetensors")
AT_ONCE = 4  # files


@dataclass(frozen=True)
class HubName:
    """A model's name on the hub.

    Attributes:
        repository: As ``owner/name``.
        revision: A branch, a tag or a commit; None: the default branch.
        file: A GGUF file's name, or the type of weights in its name; None: the model is in
            safetensors.
    """

    repository: str
    revision: str | None = None
    file: str | None = None

    @classmethod
    def read(cls, model: str) -> Self:
        """The parts of ``owner/name@revision:file``."""
        name, _, file = model.partition(":")
        repository, _, revision = name.partition("@")
        return cls(repository, revision or None, file or None)

    @property
    def served_name(self) -> str:
        """What it answers to."""
        return f"{self.repository}:{self.file}" if self.file else self.repository


def is_hub_name(model: str) -> bool:
    """Whether ``model`` has the form of a name on the hub, and no path's."""
    name = HubName.read(model)
    return not model.startswith((".", "/", "~")) and name.repository.count("/") == 1


def hub_folder(
    model: str,
    progress: Progress | None = None,
    *,
    weights: bool = True,
    small_files_alone: bool = False,
) -> Path:
    """The folder in the hub's cache with the files of ``model``, which are downloaded if need be;
    the first GGUF file if the name asks for one.

    Args:
        model: Its name.
        progress: Called with (bytes downloaded, bytes in all), on several threads, one at a time.
            With it, the log names each file that is fetched.
        weights: Whether they are wanted at all.
        small_files_alone: Weights that are wanted stay on the hub for now.

    Raises:
        ModelLoadError: It cannot be downloaded, or its weights are in another format.
    """
    name = HubName.read(model)
    try:
        found = _listed(name, [*SMALL_FILES, WEIGHTS, *OTHER_WEIGHTS])
        names = [file.filename for file in found]
        if name.file is not None:
            return _gguf_file(name, name.file, found, progress)
        if names and weights:
            _refuse_other_weights(model, names)
        folder = _snapshot(name, list(SMALL_FILES))
        if small_files_alone or not weights:
            return folder
        wanted = _named_by_index(folder) or [WEIGHTS]
        if progress is not None:
            chosen = [
                file for file in found if any(fnmatch(file.filename, each) for each in wanted)
            ]
            _fetch(name, [file for file in chosen if file.will_download], progress)
        return _snapshot(name, [*SMALL_FILES, *wanted])
    except ModelLoadError:
        raise
    except Exception as error:  # the library's, its HTTP client's, the system's
        why = str(error).rstrip(". ")
        raise ModelLoadError(
            f"{model!r} is not a local folder, and cannot be downloaded from the hub: {why}. "
            "Check the name, the network and, for a gated model, your token (`hf auth login`)",
            param="model",
        ) from error


def _snapshot(name: HubName, patterns: list[str]) -> Path:
    """The folder of the cache, with the files of these names."""
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            name.repository,
            revision=name.revision,
            allow_patterns=patterns,
            ignore_patterns=list(LEFT_OUT),
            tqdm_class=_bar(lambda _: None),
        )
    )


def _named_by_index(folder: Path) -> list[str]:
    """The weights that the index names; none where there is no index."""
    named = read_json(folder / "model.safetensors.index.json").get("weight_map")
    return sorted(set(map(str, named.values()))) if isinstance(named, dict) else []


def _gguf_file(
    name: HubName, wanted: str, found: "Sequence[DryRunFileInfo]", progress: Progress | None
) -> Path:
    """The GGUF file, the first of several, that a name asks for."""
    if found:
        ours = chosen_files(name.repository, [file.filename for file in found], wanted)
        if progress is not None:
            _fetch(name, [f for f in found if f.filename in ours and f.will_download], progress)
        return _snapshot(name, ours) / ours[0]
    # The hub cannot be asked, and of its cache no file but the one that is wanted need be there.
    folder = _snapshot(name, ["-"])
    here = [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf")]
    return folder / chosen_files(name.repository, here, wanted)[0]


def _listed(name: HubName, patterns: list[str]) -> "list[DryRunFileInfo]":
    """The files of a repository; none where the hub cannot be asked, but its cache may do."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import DryRunError

    try:
        return list(
            snapshot_download(
                name.repository,
                revision=name.revision,
                allow_patterns=patterns,
                ignore_patterns=list(LEFT_OUT),
                dry_run=True,
                tqdm_class=_bar(lambda _: None),
            )
        )
    except DryRunError:
        return []


def _refuse_other_weights(model: str, names: Sequence[str]) -> None:
    """Refuse, before anything is downloaded, a repository without safetensors."""
    if any(name.endswith(".safetensors") for name in names):
        return
    if any(name.endswith(".bin") for name in names):
        raise ModelLoadError(refusal_of_bin(model), param="model")
    if gguf := [name for name in names if name.endswith(".gguf")]:
        raise ModelLoadError(
            f"{model} has GGUF files only: name one, such as {model}:{gguf[0]}", param="model"
        )


def refusal_of_bin(model: str) -> str:
    """The refusal of weights in PyTorch's files, with what to do about them.

    Args:
        model: The path of their folder, or their name on the hub.
    """
    name = HubName.read(model) if is_hub_name(model) else HubName(model)
    target = f"{Path(name.repository).name}-safetensors"
    source = repr(name.repository) + (f", revision={name.revision!r}" if name.revision else "")
    program = (
        "from transformers import AutoModelForCausalLM, AutoTokenizer; "
        f"[each.from_pretrained({source}).save_pretrained({target!r}) "
        "for each in (AutoModelForCausalLM, AutoTokenizer)]"
    )
    return (
        f"the weights of {model} are in PyTorch's .bin files, which can run code when they are "
        "read. Where torch and transformers are installed, this converts them to safetensors in "
        f"the folder {target}:\n\n    python -c {shlex.quote(program)}\n"
    )


def _fetch(name: HubName, files: "Sequence[DryRunFileInfo]", progress: Progress) -> None:
    """Download files into the hub's cache, several at once, and log each."""
    from huggingface_hub import hf_hub_download

    if not files:
        return
    sizes = {file.filename: file.file_size or 0 for file in files}
    counts, revision = _Counts(sizes, progress), files[0].commit_hash
    log.info(
        "fetching %d files of %s at %s, %s",
        len(files), name.repository, revision[:12], _bytes(sum(sizes.values())),
    )  # fmt: skip

    def fetch(file: "DryRunFileInfo") -> None:
        path = file.filename
        bar = _bar(lambda count: counts.add(path, count))
        hf_hub_download(name.repository, path, revision=revision, tqdm_class=bar)
        whole = counts.whole(path)
        log.info("fetched %s, %s: %d of %d files", path, _bytes(sizes[path]), whole, len(files))

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="pyengine-hub") as pool:
        for done in [pool.submit(fetch, file) for file in files]:
            done.result()


class _Counts:
    """The bytes of each file that have come, for a caller that wants their sum. Any thread."""

    def __init__(self, sizes: dict[str, int], progress: Progress) -> None:
        self._sizes = sizes
        self._come = dict.fromkeys(sizes, 0)
        self._whole = 0
        self._progress = progress
        self._lock = threading.Lock()

    def add(self, name: str, count: int) -> None:
        """More of a file, or less: a part of it is asked for again."""
        with self._lock:
            self._come[name] += count
            self._tell()

    def whole(self, name: str) -> int:
        """A file is there. Returns how many are."""
        with self._lock:
            self._come[name] = self._sizes[name]
            self._whole += 1
            self._tell()
            return self._whole

    def _tell(self) -> None:
        self._progress(sum(self._come.values()), sum(self._sizes.values()))


def _bar(count: Any) -> type[Any]:
    """A progress bar for huggingface_hub that shows nothing, and gives numbers of bytes to
    ``count``.
    """
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]  # not listed

    class Bar(tqdm):
        def __init__(self, *args: Any, **keywords: Any) -> None:
            quiet = keywords | {"disable": True}
            super().__init__(*args, **quiet)  # type: ignore[no-untyped-call]
            if keywords.get("initial"):
                count(int(keywords["initial"]))

        def update(self, n: float | None = 1) -> None:
            count(int(n or 0))

    return Bar


def _bytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"

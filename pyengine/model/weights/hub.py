"""Models by their names on the hub, through huggingface_hub.

A name is ``owner/name``, or ``owner/name@revision`` with a branch, a tag or a commit. The library's
variables say where the hub is (HF_ENDPOINT), who asks (HF_TOKEN), where files are kept (HF_HOME,
HF_HUB_CACHE) and that nothing may be asked (HF_HUB_OFFLINE). What a broken download has left is
gone on with. Imports no torch.
"""

import logging
import shlex
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyengine.errors import ModelLoadError
from pyengine.model.progress import Progress

if TYPE_CHECKING:
    from huggingface_hub import DryRunFileInfo

log = logging.getLogger("pyengine")

# Files of a repository that serving needs, beside the weights.
SMALL_FILES = ("*.json", "*.jinja", "tokenizer.model")
WEIGHTS = "*.safetensors"
# Weights in other formats are not fetched; they are looked for to say what to do with them.
OTHER_WEIGHTS = ("*.bin", "*.gguf")
# Mistral's repositories have all weights a second time, by names of their own.
LEFT_OUT = ("*consolidated*.safetensors*",)
AT_ONCE = 4  # files


def is_hub_name(model: str) -> bool:
    """Whether ``model`` has the form ``owner/name`` or ``owner/name@revision``, and no path's."""
    repository = model.partition("@")[0]
    return not model.startswith((".", "/", "~")) and repository.count("/") == 1


def hub_folder(model: str, progress: Progress | None = None, *, weights: bool = True) -> Path:
    """The folder in the hub's cache with the files of ``model``, which are downloaded if need be.

    Args:
        model: Its name.
        progress: Called with (bytes downloaded, bytes in all), on several threads, one at a time.
            With it, the log names each file that is fetched.
        weights: Whether they are wanted, too.

    Raises:
        ModelLoadError: It cannot be downloaded, or its weights are in another format.
    """
    from huggingface_hub import snapshot_download

    repository, _, revision = model.partition("@")
    patterns = [*SMALL_FILES, *((WEIGHTS,) if weights else ())]
    chosen: dict[str, Any] = {
        "revision": revision or None,
        "ignore_patterns": list(LEFT_OUT),
        "tqdm_class": _bar(lambda _: None),
    }
    try:
        if progress is not None:
            found = _listed(repository, chosen | {"allow_patterns": [*patterns, *OTHER_WEIGHTS]})
            if weights:
                _refuse_other_weights(model, found)
            _fetch(model, [file for file in found if _is_wanted(file)], progress)
        return Path(snapshot_download(repository, allow_patterns=patterns, **chosen))
    except ModelLoadError:
        raise
    except Exception as error:  # the library's, its HTTP client's, the system's
        why = str(error).rstrip(". ")
        raise ModelLoadError(
            f"{model!r} is not a local folder, and cannot be downloaded from the hub: {why}. "
            "Check the name, the network and, for a gated model, your token (`hf auth login`)",
            param="model",
        ) from error


def _listed(repository: str, chosen: dict[str, Any]) -> "list[DryRunFileInfo]":
    """The files of a repository; none where the hub cannot be asked, but its cache may do."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import DryRunError

    try:
        return list(snapshot_download(repository, dry_run=True, **chosen))
    except DryRunError:
        return []


def _is_wanted(file: "DryRunFileInfo") -> bool:
    return file.will_download and not any(Path(file.filename).match(p) for p in OTHER_WEIGHTS)


def _refuse_other_weights(model: str, found: "Sequence[DryRunFileInfo]") -> None:
    """Refuse, before anything is downloaded, a repository without safetensors."""
    names = [file.filename for file in found]
    if any(name.endswith(".safetensors") for name in names):
        return
    if any(name.endswith(".bin") for name in names):
        raise ModelLoadError(refusal_of_bin(model), param="model")
    if gguf := [name for name in names if name.endswith(".gguf")]:
        repository, _, revision = model.partition("@")
        option = f" --revision {shlex.quote(revision)}" if revision else ""
        raise ModelLoadError(
            f"{model} has GGUF files only: download one, with `hf download {repository} "
            f"{shlex.quote(gguf[0])}{option}`, and give the path that it prints",
            param="model",
        )


def refusal_of_bin(model: str) -> str:
    """The refusal of weights in PyTorch's files, with what to do about them.

    Args:
        model: The path of their folder, or their name on the hub.
    """
    name, _, revision = model.partition("@") if is_hub_name(model) else (model, "", "")
    target = f"{Path(name).name}-safetensors"
    source = repr(name) + (f", revision={revision!r}" if revision else "")
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


def _fetch(model: str, files: "Sequence[DryRunFileInfo]", progress: Progress) -> None:
    """Download files into the hub's cache, several at once, and log each."""
    from huggingface_hub import hf_hub_download

    if not files:
        return
    sizes = {file.filename: file.file_size or 0 for file in files}
    counts, revision = _Counts(sizes, progress), files[0].commit_hash
    log.info(
        "fetching %d files of %s at %s, %s",
        len(files), model, revision[:12], _bytes(sum(sizes.values())),
    )  # fmt: skip

    def fetch(file: "DryRunFileInfo") -> None:
        name = file.filename
        bar = _bar(lambda count: counts.add(name, count))
        hf_hub_download(model.partition("@")[0], name, revision=revision, tqdm_class=bar)
        whole = counts.whole(name)
        log.info("fetched %s, %s: %d of %d files", name, _bytes(sizes[name]), whole, len(files))

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

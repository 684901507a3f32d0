"""Weights from a Hugging Face folder: model.safetensors, or shards with an index.

The files are mapped into memory, and of a tensor only the rank's share is read when it is asked
for; what its architecture does not ask for is never read. Readers copy to the device in parallel.
"""

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from pyengine.errors import ModelLoadError
from pyengine.model.runner import Progress
from pyengine.model.weights.sharding import RankWeights, Slices

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
FLOATS = ("F64", "F32", "F16", "BF16")


class Checkpoint(RankWeights):
    """The tensors of one folder. One thread at a time."""

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype,
        rank: int = 0,
        ranks: int = 1,
        *,
        readers: int = 0,
        progress: Progress | None = None,
    ) -> None:
        """Open the folder's weights.

        Raises:
            ModelLoadError: There are none, or a file is damaged or missing.
        """
        super().__init__(device, dtype, rank, ranks)
        self._folder = folder
        self._progress = progress
        self._home: dict[str, Any] = {}
        paths = _weight_files(folder)
        self._total = sum(path.stat().st_size for path in paths)
        self._loaded = 0
        for path in paths:
            try:
                file: Any = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise ModelLoadError(f"cannot read the weights in {path}: {error}") from error
            self._home |= dict.fromkeys(file.keys(), file)
        self._pool = ThreadPoolExecutor(readers, "pyengine-weights") if readers else None
        self._reading: list[Future[int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.wait()
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
            self._reading.clear()
            self._home.clear()
        if error is None and self._progress is not None:
            self._progress(self._total, self._total)

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """See :class:`RankWeights`."""
        file = self._home.get(name)
        if file is None:
            raise ModelLoadError(f"the weights in {self._folder} lack {name!r}")
        found = file.get_slice(name)
        if tuple(found.get_shape()) != shape:
            raise ModelLoadError(
                f"{name!r} in {self._folder} has shape {found.get_shape()}; config.json wants "
                f"{list(shape)}"
            )
        kind = found.get_dtype()
        if kind not in FLOATS:
            raise ModelLoadError(
                f"{name!r} in {self._folder} is {kind}: quantized weights are not supported"
            )

    def fill(self, out: torch.Tensor, name: str, shape: tuple[int, ...], part: Slices) -> None:
        """See :class:`RankWeights`."""
        file = self._home[name]

        def read() -> int:
            try:
                found: torch.Tensor = file.get_slice(name)[part or ...]
            except (OSError, SafetensorError) as error:
                raise ModelLoadError(f"cannot read {name!r}: {error}") from error
            with torch.inference_mode(out.is_inference()):
                out.copy_(found)
            return found.nbytes

        if self._pool is None:
            self._count(read())
        else:
            self._reading.append(self._pool.submit(self._on_device, read))

    def wait(self) -> None:
        """See :class:`Weights`."""
        reading, self._reading = self._reading, []
        for future in reading:
            self._count(future.result())

    def _on_device(self, read: Callable[[], int]) -> int:
        if self.device.type != "cuda":
            return read()
        # A stream for each copy: those of several threads go on beside each other.
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            size = read()
        stream.synchronize()
        return size

    def _count(self, size: int) -> None:
        self._loaded += size
        if self._progress is not None:
            self._progress(self._loaded, self._total)


def _weight_files(folder: Path) -> list[Path]:
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.is_file():
        return [single]
    if not index.is_file():
        raise ModelLoadError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelLoadError(f"cannot read {index}: {error}") from error
    paths = [folder / name for name in names]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise ModelLoadError(f"{folder} lacks {', '.join(missing)}, named in {INDEX_FILE}")
    return paths

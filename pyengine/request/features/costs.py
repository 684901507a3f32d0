"""What a request cost: device time, CPU and cache, as the scheduler charges its rows."""

from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

from pyengine._core import Stage
from pyengine.completion import Cost
from pyengine.logprobs import Spelling
from pyengine.messages import Extension, Submit
from pyengine.request.features.feature import AnswerPart, Asked, Feature, Options
from pyengine.telemetry.preparation import counted

_WAITS = (Stage.COPY_BACK, Stage.IDLE)


class CostExtension(Extension):
    """Asks what the request costs.

    Attributes:
        token_bytes: Bytes of the cache that a token takes.
    """

    TAG: ClassVar[str] = "cost"

    token_bytes: int


class CostExtra(Extension):
    """Gives back what the request has cost so far.

    Attributes:
        device_ns: Its share of the device's time.
        cache_byte_us: Bytes of the cache, by how many microseconds it held them.
        steps: Rows that it had.
        stage_ns: Its share of the threads' time, by the number of the stage.
    """

    TAG: ClassVar[str] = "cost"

    device_ns: int
    cache_byte_us: int
    steps: int
    stage_ns: list[int]


class CostKeywords(TypedDict, total=False):
    """The keyword for costs; see :class:`CostOptions`."""

    cost: bool


@dataclass(frozen=True, kw_only=True)
class CostOptions(Options):
    """The option for costs.

    Attributes:
        cost: Tell what the request cost; see :attr:`pyengine.completion.Usage.cost`.
    """

    cost: bool = False


def _ask(asked: Asked, options: CostOptions) -> CostExtension | None:
    return CostExtension(asked.info.token_bytes) if options.cost else None


class Costs(AnswerPart):
    """What the request has cost so far, of engines that died too."""

    def __init__(self, submit: Submit, extension: CostExtension, spelling: Spelling) -> None:
        self._extension = extension
        self._before = self._cost = Cost(0.0, 0.0, 0, counted())

    def receive(self, extra: CostExtra) -> None:
        """Take in what was charged."""
        cpu_us = {
            stage.label: ns * 1e-3
            for stage, ns in zip(Stage.all(), extra.stage_ns, strict=True)
            if ns and stage not in _WAITS
        }
        here = Cost(extra.device_ns * 1e-9, extra.cache_byte_us * 1e-6, extra.steps, cpu_us)
        self._cost = self._before.plus(here)

    def usage(self) -> dict[str, Any]:
        """The cost up to here."""
        return {"cost": self._cost}

    def continued(self) -> CostExtension:
        """A new engine begins at nothing."""
        self._before = self._cost
        return self._extension


FEATURE = Feature(CostExtension, _ask, Costs, CostExtra)

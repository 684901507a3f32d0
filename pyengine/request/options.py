"""The options of a request besides its sampling parameters, and their checks."""

from dataclasses import dataclass

from pyengine.errors import InvalidRequestError
from pyengine.request.arguments import wrong_type
from pyengine.request.features.adapter import AdapterKeywords, AdapterOptions
from pyengine.request.features.costs import CostKeywords, CostOptions
from pyengine.request.features.grammar import ClosingKeywords, GrammarKeywords, GrammarOptions
from pyengine.request.features.logits_processors import (
    LogitsProcessorsKeywords,
    LogitsProcessorsOptions,
)
from pyengine.request.features.pooling import PoolingOptions
from pyengine.request.features.prediction import PredictionKeywords, PredictionOptions
from pyengine.request.features.prompt_logprobs import PromptLogProbsKeywords, PromptLogProbsOptions
from pyengine.request.features.thinking_budget import ThinkingBudgetOptions
from pyengine.sampling import check_priority

MAX_TIMEOUT_S = 30 * 24 * 3600


@dataclass(frozen=True, kw_only=True)
class RequestOptions(
    GrammarOptions,
    PredictionOptions,
    PromptLogProbsOptions,
    LogitsProcessorsOptions,
    PoolingOptions,
    ThinkingBudgetOptions,
    AdapterOptions,
    CostOptions,
):
    """The options of a request besides its sampling parameters, checked when they are made.

    Each feature declares its own; these are the options that every request has.

    Attributes:
        priority: Lower runs first; 0 is usual.
        tenant: The tenant that the request is charged to when tenants share fairly. Tenants are not
            isolated, as their names can be guessed: give requests that must not affect each other a
            ``cache_salt`` each.
        cache_salt: Cached prefixes are shared only under the same salt.
        timeout: Seconds after which the request ends with an error, RequestTimeoutError.

    Raises:
        InvalidRequestError: An option is out of its range; names it.
    """

    priority: int = 0
    tenant: str | None = None
    cache_salt: str | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        check_priority(self.priority)
        _check_timeout(self.timeout)
        super().__post_init__()


class EmbedKeywords(AdapterKeywords, total=False):
    """The keywords of ``embed``; see :class:`RequestOptions`."""

    priority: int
    tenant: str | None
    cache_salt: str | None
    timeout: float | None


class RequestKeywords(
    EmbedKeywords,
    ClosingKeywords,
    PredictionKeywords,
    PromptLogProbsKeywords,
    LogitsProcessorsKeywords,
    CostKeywords,
    total=False,
):
    """The keywords that ``generate`` and ``chat`` share; see :class:`RequestOptions`."""


class GenerateKeywords(RequestKeywords, GrammarKeywords, total=False):
    """The keywords of ``generate``; see :class:`RequestOptions`."""


def _check_timeout(timeout: float | None) -> None:
    if timeout is None:
        return
    if not isinstance(timeout, int | float):
        raise wrong_type("timeout", "a number of seconds", timeout)
    if not 0 < timeout <= MAX_TIMEOUT_S:
        raise InvalidRequestError(
            f"'timeout' must be above 0 and at most {MAX_TIMEOUT_S} seconds", param="timeout"
        )

"""How well documents answer a query: Jina's and Cohere's rerank, and vLLM's score."""

import msgspec

from pyengine.http.openai.schema.embeddings import ScoredResponse
from pyengine.http.scheduled import ScheduledRequest


class DocumentObject(msgspec.Struct, forbid_unknown_fields=True):
    """A document as an object."""

    text: str


class RelevanceRequest(ScheduledRequest, kw_only=True, forbid_unknown_fields=True):
    """Fields of both requests."""

    instruction: str | None = None
    user: str | None = None


class RerankRequest(RelevanceRequest, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/rerank``: the documents, or the best ``top_n``, in the order of their scores.

    Attributes:
        query: The query.
        documents: The documents, as texts or objects.
        top_n: The most results; 0 is all.
        return_documents: Whether results have the documents' texts.
    """

    query: str
    documents: list[str | DocumentObject]
    top_n: int | None = None
    return_documents: bool | None = None


class RerankResult(msgspec.Struct, gc=False):
    """A document by its place in the request, and its score from 0 to 1 (a cosine from -1)."""

    index: int
    relevance_score: float
    document: DocumentObject | msgspec.UnsetType = msgspec.UNSET


class RerankResponse(ScoredResponse, gc=False, kw_only=True):
    """The best document first."""

    results: list[RerankResult]


class ScoreRequest(RelevanceRequest, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/score``: of pairs of texts, or of one text with each of several."""

    text_1: str | list[str]
    text_2: str | list[str]


class ScoreObject(msgspec.Struct, gc=False):
    """The score of a pair."""

    index: int
    score: float
    object: str = "score"


class ScoreResponse(ScoredResponse, gc=False, kw_only=True):
    """The scores of the pairs."""

    data: list[ScoreObject]

"""The sampler in torch, on any device: what :mod:`.sample` is tested against.

It sorts, and takes some hundred operations for a batch; the tokens are those of the Rust sampler
and of the Triton kernel bit by bit, for every operation is the same IEEE operation.
"""

import torch

from pyengine.kernels.sampling.inputs import SamplingInputs
from pyengine.kernels.sampling.rules import FIELDS

_LOW = 0xFFFFFFFF
_INFINITY = float("inf")


def noise_words(seed: torch.Tensor, position: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """The noise of every token, as int64 below 2^32 [rows, vocabulary]; see ``random.rs``.

    Philox 4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3"
    (SC11).

    Args:
        seed: int64 [rows], the bits of the seeds.
        position: int64 [rows].
        vocabulary: Number of tokens.
    """
    blocks = -(-vocabulary // 128)
    counters = torch.arange(blocks * 32, device=seed.device).expand(len(seed), -1)
    words = torch.stack(_philox(seed, position, counters, 0), dim=1)  # [rows, word, counter]
    words = words.view(len(seed), 4, blocks, 32).transpose(1, 2)
    return words.reshape(len(seed), blocks * 128)[:, :vocabulary]


def common_words(seed: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """The word of each row that is no token's, as int64 below 2^32 [rows]; see ``random.rs``."""
    return _philox(seed, position, torch.zeros_like(seed)[:, None], 1)[0][:, 0]


def _philox(
    seed: torch.Tensor, position: torch.Tensor, c2: torch.Tensor, last: int
) -> tuple[torch.Tensor, ...]:
    """The four words of the counters ``position``, ``c2`` [rows, counters] and ``last``."""
    c0 = (position & _LOW)[:, None].expand_as(c2)
    c1 = ((position >> 32) & _LOW)[:, None].expand_as(c2)
    c3 = torch.full_like(c2, last)
    k0, k1 = (seed & _LOW)[:, None], ((seed >> 32) & _LOW)[:, None]
    for _ in range(10):
        # Products of 32 bits by halves, for they do not fit into a signed 64-bit number.
        left_high, left = _multiply(c0, 0xD2511F53)
        right_high, right = _multiply(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = right_high ^ c1 ^ k0, right, left_high ^ c3 ^ k1, left
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return c0, c1, c2, c3


def _multiply(word: torch.Tensor, by: int) -> tuple[torch.Tensor, torch.Tensor]:
    low = word * (by & 0xFFFF)
    high = word * (by >> 16) + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def exponential(words: torch.Tensor) -> torch.Tensor:
    """-ln((word + 1/2) / 2^32) in float32, by Cephes' polynomial (S. L. Moshier)."""
    high = words >= 2**31
    small = torch.where(high, _LOW - words, words).to(torch.float32)
    f = (small + 0.5) * 2.0**-32
    e, r = _parts(f)
    near = f < torch.tensor(0.29289323, dtype=torch.float32)
    e = torch.where(high, torch.where(near, 0.0, -1.0), e)
    r = torch.where(high, torch.where(near, -f, 1.0 - (f + f)), r)
    return -_ln_of_parts(e, r)


def ln(x: torch.Tensor) -> torch.Tensor:
    """Ln x in float32 of normal x above 0."""
    return _ln_of_parts(*_parts(x))


def _parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """E and r of x = 2^e * (1 + r), r between sqrt(1/2) - 1 and sqrt(2) - 1."""
    shifted = x.view(torch.int32) - 0x3F3504F3
    e = (shifted >> 23).to(torch.float32)
    return e, ((shifted & 0x007FFFFF) + 0x3F3504F3).view(torch.float32) - 1.0


def _ln_of_parts(e: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    square = r * r
    p = r * 7.0376836e-2 - 1.151461e-1
    p = p * r + 1.1676999e-1
    p = p * r - 1.2420141e-1
    p = p * r + 1.4249323e-1
    p = p * r - 1.6668058e-1
    p = p * r + 2.0000715e-1
    p = p * r - 2.4999994e-1
    p = p * r + 3.333333e-1
    y = p * r * square
    y = y + e * -2.1219444e-4
    y = y - square * 0.5
    return (r + y) + e * 0.6933594


def exp(x: torch.Tensor) -> torch.Tensor:
    """e^x in float32 for x <= 0; 0 below -87.3 and of NaN."""
    normal = x > torch.tensor(-87.3, dtype=torch.float32)
    x0 = torch.where(normal, x, -87.3)
    shifted = x0 * 1.4426950408889634 + 12582912.0
    n = shifted - 12582912.0
    r = n * -0.6933594 + x0
    r = n * 2.1219444e-4 + r
    p = r * 1.9875691e-4 + 1.3982e-3
    p = p * r + 8.333452e-3
    p = p * r + 4.1665796e-2
    p = p * r + 1.6666665e-1
    p = p * r + 0.5
    p = (p * (r * r) + r) + 1.0
    scale = ((shifted.view(torch.int32) << 23) + 0x3F800000).view(torch.float32)
    return torch.where(normal, p * scale, 0.0)


def weights(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """e^((logit - best) / temperature) in float32; where the best is infinite, 1 there and else 0.

    Args:
        logits: float32 [rows, vocabulary], without NaN.
        temperature: float32 [rows], above 0.
    """
    best = logits.amax(dim=1, keepdim=True)
    infinite = torch.where(logits == best, 0.0, -_INFINITY)
    exponent = (logits - best) / temperature[:, None]
    return exp(torch.where(best == _INFINITY, infinite, exponent))


def allowed_tokens(mask: torch.Tensor, mask_row: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Tokens that rows of ``mask``, int32 [rows], allow: bool [rows, vocabulary]; -1 allows all."""
    bits = (mask[mask_row.clamp(min=0)][:, :, None] >> torch.arange(32, device=mask.device)) & 1
    return (bits.flatten(1)[:, :vocabulary] != 0) | (mask_row < 0)[:, None]


def kept_tokens(
    logits: torch.Tensor,
    weight: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """Tokens with a weight that pass top-k, then top-p, then min-p: bool [rows, vocabulary].

    Args:
        logits: float32 [rows, vocabulary], without NaN; minus infinity where not allowed.
        weight: float32 [rows, vocabulary].
        top_k: int32 [rows]; 0 is off.
        top_p: float32 [rows]; 1 is off.
        min_p: float32 [rows]; 0 is off.
    """
    order = logits.argsort(dim=1, descending=True, stable=True)
    place = torch.arange(logits.shape[1], device=logits.device)
    inside = (top_k <= 0)[:, None] | (place < top_k[:, None])
    mass = mass_of(weight).gather(1, order) * inside
    total = mass.sum(dim=1)
    wanted = (top_p.double() * total.double()).ceil().to(torch.int64).clamp(min=1)
    before = mass.cumsum(dim=1) - mass
    # Not "below 1 is on": a NaN keeps all.
    inside &= ~(top_p < 1.0)[:, None] | (before < wanted[:, None])
    kept = torch.zeros_like(inside).scatter(1, order, inside)
    least = torch.where(min_p > 2.0**-126, min_p.clamp(max=1.0), 2.0**-126)
    return kept & (weight >= least[:, None])


def mass_of(weight: torch.Tensor) -> torch.Tensor:
    """Weights in units of 2^-30, int64, so that sums are exact."""
    return (weight * 1073741824.0 + 0.5).to(torch.int64)


def depth_of(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """How far below the best logits are, over the temperature [rows]: int64, in units of 2^-14."""
    best = logits.amax(dim=1, keepdim=True)
    below = torch.where(logits == best, 0.0, (best - logits) / temperature[:, None])
    return (below.nan_to_num(nan=88.0).clamp(max=88.0) * 16384.0 + 0.5).to(torch.int64)


def near_tokens(logits: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Tokens that top-n-sigma keeps: bool [rows, vocabulary]; see ``top_n_sigma.rs``.

    Args:
        logits: float32 [rows, vocabulary], without NaN.
        n: float32 [rows]; 0 is off.
    """
    best = logits.amax(dim=1, keepdim=True)
    possible = logits > -_INFINITY
    below = torch.where(possible, best - logits, 0.0).nan_to_num(nan=0.0).clamp(max=2048.0)
    depth = (below * 2048.0 + 0.5).to(torch.int64) * possible
    count = possible.sum(dim=1).clamp(min=1)
    mean = depth.sum(dim=1) // count
    squares = ((depth - mean[:, None]) ** 2 * possible).sum(dim=1)
    widest = n.double() * n.double() * squares.double()
    inside = (depth * depth).double() * count.double()[:, None] <= widest[:, None]
    off = ~(n > 0.0)[:, None] | (best == _INFINITY)
    return possible & (inside | off)


def dynamic_temperature(
    logits: torch.Tensor, temperature: torch.Tensor, around: torch.Tensor, exponent: torch.Tensor
) -> torch.Tensor:
    """The temperatures, float32 [rows]; see ``dynamic.rs``.

    Args:
        logits: float32 [rows, vocabulary], without NaN.
        temperature: float32 [rows], above 0.
        around: float32 [rows]; 0 is off.
        exponent: float32 [rows], above 0.
    """
    one = torch.ones_like(temperature)
    best = logits.amax(dim=1, keepdim=True)
    possible = (logits > -_INFINITY) & ((best < _INFINITY) | (logits == best))
    mass = mass_of(weights(logits, one)) * possible
    count, total = (part.sum(dim=1).to(torch.float32) for part in (possible, mass))
    mean = (mass * depth_of(logits, one)).sum(dim=1).to(torch.float32) / total * 2.0**-14
    entropy = ln(total * 2.0**-30) + mean
    share = torch.where(count > 1.0, entropy / ln(count.clamp(min=2.0)), 0.0)
    power = exp(exponent * ln(share.clamp(min=2.0**-126)))
    share = torch.where(share >= 1.0, 1.0, torch.where(share < 2.0**-126, 0.0, power))
    low, high = (temperature - around).clamp(min=0.0), temperature + around
    dynamic = (low + (high - low) * share).clamp(min=2.0**-126)
    return torch.where(around > 0.0, dynamic, temperature)


def tokens_without_top_choices(
    logits: torch.Tensor,
    weight: torch.Tensor,
    kept: torch.Tensor,
    threshold: torch.Tensor,
    happens: torch.Tensor,
) -> torch.Tensor:
    """Tokens of ``kept`` that XTC leaves: bool [rows, vocabulary]; see ``xtc.rs``.

    Args:
        logits: float32 [rows, vocabulary], without NaN.
        weight: float32 [rows, vocabulary].
        kept: bool [rows, vocabulary].
        threshold: float32 [rows].
        happens: bool [rows]: what is drawn says so.
    """
    order = logits.argsort(dim=1, descending=True, stable=True)
    mass = mass_of(weight) * kept
    total = mass.sum(dim=1)
    wanted = (threshold.double() * total.double()).ceil().to(torch.int64).clamp(min=1)
    likely = (mass >= wanted[:, None]).gather(1, order)
    place = torch.arange(logits.shape[1], device=logits.device)
    last = torch.where(likely, place, -1).amax(dim=1, keepdim=True)
    dropped = torch.zeros_like(kept).scatter(1, order, place < last)
    return kept & ~(dropped & (happens & (threshold <= 0.5))[:, None])


def typical_tokens(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    weight: torch.Tensor,
    kept: torch.Tensor,
    typical_p: torch.Tensor,
) -> torch.Tensor:
    """Tokens of ``kept`` that typical-p leaves: bool [rows, vocabulary]; see ``typical.rs``.

    Args:
        logits: float32 [rows, vocabulary], without NaN.
        temperature: float32 [rows], above 0.
        weight: float32 [rows, vocabulary].
        kept: bool [rows, vocabulary].
        typical_p: float32 [rows]; 1 is off.
    """
    depth = depth_of(logits, temperature)
    mass = mass_of(weight) * kept
    total = mass.sum(dim=1)
    mean = (mass * depth).sum(dim=1) // total.clamp(min=1)
    distance, order = (depth - mean[:, None]).abs().sort(dim=1)
    wanted = (typical_p.double() * total.double()).ceil().to(torch.int64).clamp(min=1)
    reached = mass.gather(1, order).cumsum(dim=1) >= wanted[:, None]
    farthest = distance.gather(1, reached.int().argmax(dim=1, keepdim=True))
    near = (depth - mean[:, None]).abs() <= farthest
    return kept & (near | ~(typical_p < 1.0)[:, None])


def sample(
    inputs: SamplingInputs, logits: torch.Tensor, tokens: torch.Tensor, first: int = 0
) -> None:
    """As :func:`.sample.sample`, in torch."""
    rows, vocabulary = logits.shape
    here = slice(first, first + rows)
    row = inputs.logit_row[here].long()
    mask_row = inputs.mask_row[here]
    if vocabulary == 0 or rows == 0:
        return
    allowed = torch.ones_like(logits, dtype=torch.bool)
    if (mask_row >= 0).any():
        allowed = allowed_tokens(inputs.mask, mask_row, vocabulary)
    clean = logits.float()
    clean = torch.where(allowed & ~clean.isnan(), clean, -_INFINITY)
    clean = torch.where(clean == 0.0, 0.0, clean)
    temperature = inputs.rule("temperature")[row]
    sampled = temperature > 0.0

    rule = {name: inputs.rule(name)[row] for name in FIELDS}
    start = inputs.logit_start[row]
    position = inputs.sample_position[row] + torch.arange(first, first + rows).to(start) - start
    near = near_tokens(clean, rule["top_n_sigma"])
    clean = torch.where(near | ~sampled[:, None], clean, -_INFINITY)
    warm = torch.where(sampled, temperature, 1.0)
    warm = dynamic_temperature(clean, warm, rule["dynatemp_range"], rule["dynatemp_exponent"])
    weight = weights(clean, warm)
    kept = kept_tokens(clean, weight, rule["top_k"], rule["top_p"], rule["min_p"])
    kept = typical_tokens(clean, warm, weight, kept, rule["typical_p"])
    chance = rule["xtc_probability"].double() * 2.0**32
    happens = common_words(rule["seed"], position).double() < chance
    kept = tokens_without_top_choices(clean, weight, kept, rule["xtc_threshold"], happens)
    words = noise_words(rule["seed"], position, vocabulary)
    times = torch.where(kept, exponential(words) / weight, _INFINITY)
    # argmax and argmin of a bool or float take any of equals: the first is asked for by number.
    greedy = (clean == clean.amax(dim=1, keepdim=True)).int().argmax(dim=1)
    drawn = (times == times.amin(dim=1, keepdim=True)).int().argmax(dim=1)
    chosen = torch.where(sampled, drawn, greedy)
    chosen = torch.where(clean.amax(dim=1) == -_INFINITY, -1, chosen)
    only = (mask_row >= 0) & (allowed.sum(dim=1) == 1)
    tokens[here] = torch.where(only, allowed.int().argmax(dim=1), chosen).to(torch.int32)

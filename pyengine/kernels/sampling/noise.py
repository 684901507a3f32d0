"""The noise of the race and the weights that run it, in Triton, with the bits of the Rust kernels.

Every operation is IEEE float32, rounded on its own and in the same order as in
``kernels/cpu/src/random.rs`` and ``math.rs``, where the definitions are explained. Launch kernels
that use these with ``enable_fp_fusion=False``: a fused multiply-add rounds once less.
"""

from pyengine.kernels.language import tl, triton


@triton.jit
def parts(x):
    """E and r of x = 2^e * (1 + r), r between sqrt(1/2) - 1 and sqrt(2) - 1; of x > 0."""
    shifted = x.to(tl.int32, bitcast=True) - 0x3F3504F3
    e = (shifted >> 23).to(tl.float32)
    return e, ((shifted & 0x007FFFFF) + 0x3F3504F3).to(tl.float32, bitcast=True) - 1.0


@triton.jit
def ln_of_parts(e, r):
    """ln(2^e * (1 + r)), by Cephes' polynomial (S. L. Moshier)."""
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


@triton.jit
def ln(x):
    """Ln x of normal x above 0."""
    e, r = parts(x)
    return ln_of_parts(e, r)


@triton.jit
def exponential(word):
    """-ln((word + 1/2) / 2^32) of uint32 words."""
    high = (word >> 31) != 0
    small = tl.where(high, word ^ 0xFFFFFFFF, word).to(tl.int32, bitcast=True).to(tl.float32)
    f = (small + 0.5) * 2.3283064365386963e-10  # 2^-32: u, or 1 - u
    e, r = parts(f)
    near = f < 0.29289323
    e = tl.where(high, tl.where(near, 0.0, -1.0), e)
    r = tl.where(high, tl.where(near, -f, 1.0 - (f + f)), r)
    return -ln_of_parts(e, r)


@triton.jit
def exp(x):
    """e^x for x <= 0; 0 below -87.3 and of NaN."""
    normal = x > -87.3
    x0 = tl.where(normal, x, -87.3)
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
    scale = ((shifted.to(tl.int32, bitcast=True) << 23) + 0x3F800000).to(tl.float32, bitcast=True)
    return tl.where(normal, p * scale, 0.0)


@triton.jit
def weight(logit, best, temperature):
    """e^((logit - best) / temperature); where the best is infinite, 1 there and else 0."""
    infinite = tl.where(logit == best, 0.0, float("-inf"))
    exponent = tl.where(best == float("inf"), infinite, tl.div_rn(logit - best, temperature))
    return exp(exponent)


@triton.jit
def mass(logit, best, temperature):
    """The weight in units of 2^-30, as int64, so that sums are exact."""
    scaled = weight(logit, best, temperature) * 1073741824.0 + 0.5
    return scaled.to(tl.int32).to(tl.int64)


@triton.jit
def depth(logit, best, temperature):
    """How far below the best a logit is, over the temperature: int32, in units of 2^-14."""
    below = tl.where(logit == best, 0.0, tl.div_rn(best - logit, temperature))
    return (tl.minimum(below, 88.0) * 16384.0 + 0.5).to(tl.int32)

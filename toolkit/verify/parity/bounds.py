"""How far two runs may differ that do the same arithmetic in another order: equations N1 to N8 of docs/maths.md.

Two layouts sum the same terms in other orders, so each rounding error of one run meets another one in the other run.
The bounds follow from the number of roundings between the weights and a result. What they take from the runs are
magnitudes (of the gradient of a tensor, of the loss) and how far the weights had already drifted apart when the step
began, which has passed its own bound before: a running error analysis, so bounds do not grow without end and the step
at which something went wrong is the step that fails.

Not bounded: results of other precisions than fp32, and gradients that cancel far below the size of their tensor's
largest element (bounds are for whole tensors, scaled by that one).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from toolkit.equation import equation
from toolkit.model import ModelSpec
from toolkit.recipe import Contract

UNIT_ROUNDOFF = 2.0**-24  # of IEEE binary32, rounded to nearest
FALSE_ALARM = 1.0e-3  # of a whole comparison
PARAMETERS_OF_A_LAYER = 6  # tensors that a token passes one after another: two norms, qkv, projection, up, down


@equation("N1", "L*(4*h + a*d + d + 2*s + f) + 2*h + V")
def forward_roundings(
    layers: int, hidden: int, heads: int, head_size: int, sequence: int, feed_forward: int, vocabulary: int
) -> float:
    """Roundings between the embedding and a token's loss: the lengths of all sums on the way.

    Of a layer: two norms, queries, and the MLP's inner product over ``h``; scores over ``d``; softmax and its product
    with the values over ``s``; the projection over ``a d``; the MLP's outer product over ``f``. Then the last norm and
    the head over ``h`` and the softmax over ``V``. Source: Higham 2002, section 3.1 (an inner product of n terms has n
    roundings on every path).
    """
    layer = 4.0 * hidden + heads * head_size + head_size + 2.0 * sequence + feed_forward
    return layers * layer + 2.0 * hidden + vocabulary


@equation("N2", "L*(4*h + (a + 2*g)*d + 2*d + 2*s + 2*f) + 2*h + V")
def backward_roundings(
    layers: int, hidden: int, heads: int, groups: int, head_size: int, sequence: int, feed_forward: int, vocabulary: int
) -> float:
    """Roundings between a token's loss and the gradient at the embedding: each product sums over its outputs now.

    Source: as N1, for the products with the transposed matrices.
    """
    layer = 4.0 * hidden + (heads + 2.0 * groups) * head_size + 2.0 * head_size + 2.0 * sequence + 2.0 * feed_forward
    return layers * layer + 2.0 * hidden + vocabulary


@equation("N3", "sqrt(2*ln(2*n/p))")
def confidence(compared: float, false_alarm: float) -> float:
    """Factor with which a bound on one result holds for all ``n`` at once but with probability ``p``.

    Source: Higham and Mary 2019, theorem 2.4 (probability of one failure at most 2 exp(-lambda^2/2)), union bound.
    """
    return math.sqrt(2.0 * math.log(2.0 * compared / false_alarm))


@equation("N4", "lambda*sqrt(2*m)*u")
def relative_difference(factor: float, roundings: float) -> float:
    """Relative difference of two results of ``m`` roundings each that are independent and of mean 0.

    Source: Higham and Mary 2019, theorem 3.1 (SIAM J. Sci. Comput. 41, A2815), and 2020 (42, A3427) for sums whose
    terms have mean 0, where the bound holds relative to the result itself.
    """
    return factor * math.sqrt(2.0 * roundings) * UNIT_ROUNDOFF


@equation("N5", "(epsilon + n_W*delta)*scale")
def tolerance(epsilon: float, tensors: float, drift: float, scale: float) -> float:
    """Difference that rounding and weights that differ by a relative ``delta`` make in a result of size ``scale``.

    ``delta`` is the largest of ``|W - W'|_F / |W|_F`` over tensors when the step began; the result is a product of
    ``n_W`` of them, so to first order it moves by ``n_W delta``. Source: Higham 2002, section 3.3 (running error
    analysis) and lemma 3.3 (products of perturbed factors).
    """
    return (epsilon + tensors * drift) * scale


@equation("N6", "(1 - b)*b**(t - i)/(1 - b**t)")
def moment_share(beta: float, step: int, earlier: int) -> float:
    """Share of the gradient of step ``i`` in a bias-corrected moment of Adam at step ``t``; the shares sum to 1.

    Source: Kingma and Ba 2015, section 3.
    """
    return float((1.0 - beta) * beta ** (step - earlier) / (1.0 - beta**step))


@equation("N7", "min((D_m + U*D_v)/(sqrt(v) + e), 2*U)")
def adam_difference(first: Any, second: Any, root: Any, epsilon: float, largest: float) -> Any:
    """Difference of two of Adam's updates ``m/(sqrt(v) + e)``, before the learning rate, element by element.

    ``D_m`` is the difference of the first moments, at most the mean of those of the gradients with shares N6; ``D_v``
    that of the roots of the second moments, at most their root mean square (triangle inequality).
    Where gradients are small against their differences the update is a sign, and ``2 U`` is all that it can change by;
    ``U`` is the largest update, by Cauchy-Schwarz ``sqrt(sum(share_1**2/share_2))``. Source: Kingma and Ba 2015,
    algorithm 1; Higham 2002, section 1.6 (conditioning of a quotient).
    """
    return np.minimum((first + largest * second) / (root + epsilon), 2.0 * largest)


@equation("N8", "D + r*(step difference) + 2*u*(2*abs(w) + (8 + 2*t)*r*U)")
def weight_tolerance(before: Any, rate: float, update: Any, weight: Any, step: int, largest: float) -> Any:
    """Difference of a weight after a step: the one before, learning rate times that of the updates, and roundings.

    Decay, clipping, the moments and the subtraction are roundings of the weight (2) and of the update (8, and 2 for
    each earlier step). Source: Higham 2002, lemma 3.1, of both runs.
    """
    return before + rate * update + 2.0 * UNIT_ROUNDOFF * (2.0 * np.abs(weight) + (8.0 + 2.0 * step) * rate * largest)


class Tolerances:
    """The numbers of one experiment; ``compared`` is how many results of it are compared."""

    def __init__(self, model: ModelSpec, contract: Contract, compared: int, largest_tensor: int) -> None:
        sequence, tokens = contract.sequence_length, contract.sequence_length * contract.global_batch_size
        width = max(model.intermediate_size, model.moe_intermediate_size * max(1, model.num_experts_per_tok))
        layers, heads, size = model.num_hidden_layers, model.num_attention_heads, model.head_dim
        forward = forward_roundings(layers, model.hidden_size, heads, size, sequence, width, model.vocab_size)
        backward = backward_roundings(
            layers, model.hidden_size, heads, model.num_key_value_heads, size, sequence, width, model.vocab_size
        )
        factor = confidence(float(compared), FALSE_ALARM)
        self.contract = contract
        self.tensors = float(layers * PARAMETERS_OF_A_LAYER + 3)
        self.loss_epsilon = relative_difference(factor, forward + tokens)
        self.gradient_epsilon = relative_difference(factor, forward + backward + tokens)
        self.norm_epsilon = relative_difference(factor, forward + backward + tokens + largest_tensor)

    def loss(self, value: float, drift: float) -> float:
        """Of the mean loss per token."""
        return tolerance(self.loss_epsilon, self.tensors, drift, abs(value))

    def gradient(self, largest: float, drift: float) -> float:
        """Of each element of a gradient whose largest element is ``largest``."""
        return tolerance(self.gradient_epsilon, 2.0 * self.tensors, drift, largest)

    def norm(self, value: float, drift: float) -> float:
        """Of the norm of all gradients."""
        return tolerance(self.norm_epsilon, 2.0 * self.tensors, drift, value)


class UpdateBound:
    """The tolerance of a tensor's weights, step after step, from the clipped gradients of both runs."""

    def __init__(self, contract: Contract, earlier: int = 0) -> None:
        self.contract, self.earlier = contract, earlier  # steps before the first, whose gradients nobody knows
        self._gradients: list[np.ndarray] = []
        self._differences: list[np.ndarray] = []

    def step(self, one: np.ndarray, other: np.ndarray, before: Any, weight: np.ndarray, rate: float) -> Any:
        """``before`` is how far the weights were apart; gradients are those that the optimizer saw."""
        one, other = one.astype(np.float64), other.astype(np.float64)
        self._gradients.append(other)
        self._differences.append(np.abs(one - other) + 4.0 * UNIT_ROUNDOFF * np.abs(one))
        now = len(self._gradients) + self.earlier
        if self.contract.optimizer == "sgd":
            return weight_tolerance(
                before, rate, self._differences[-1], weight, now, float(np.abs(one).max(initial=0.0))
            )
        places = range(1, now + 1)
        first = [moment_share(self.contract.adam_beta1, now, i) for i in places]
        second = [moment_share(self.contract.adam_beta2, now, i) for i in places]
        largest = math.sqrt(sum(a * a / b for a, b in zip(first, second, strict=True)))
        if self.earlier:
            return weight_tolerance(before, rate, 2.0 * largest, weight, now, largest)
        moved = adam_difference(
            _mean(first, self._differences),
            np.sqrt(_mean(second, [each**2 for each in self._differences])),
            np.sqrt(_mean(second, [each**2 for each in self._gradients])),
            self.contract.adam_epsilon,
            largest,
        )
        return weight_tolerance(before, rate, moved, weight, now, largest)


def _mean(shares: list[float], values: list[np.ndarray]) -> Any:
    return sum(share * value for share, value in zip(shares, values, strict=True))

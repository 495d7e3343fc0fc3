"""Real worker processes against one on the same data: loss, gradients and weights after each step, with a bound."""

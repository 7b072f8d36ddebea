"""Recovery under noise: the same equations, with a likelihood in place of a certificate."""

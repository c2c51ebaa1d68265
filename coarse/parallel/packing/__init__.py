"""Balanced minibatches of unequal samples, divided among ranks and packed into microbatches."""

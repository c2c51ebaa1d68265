"""Balanced minibatches of samples whose lengths differ: which rank computes which, packed into which microbatches."""

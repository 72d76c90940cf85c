"""Virtual environments with pinned wheels, and the proofs of patches that run in them."""

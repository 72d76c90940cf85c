"""What locks are made from, and what an environment made from one must say of itself."""

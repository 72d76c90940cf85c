"""What a build reads from outside: recipes, locks, wheels, sources, the CUDA toolchain."""

"""Kernels: declared in kernels/kernels.yaml, compiled for a list of architectures, audited in their machine code."""

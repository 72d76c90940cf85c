"""FlashInfer in miniature: names its modules and writes build files as the real one does, of C++ and CUDA."""

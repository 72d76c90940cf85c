"""The overlay: the files in which a tree differs from its pin, laid over the published wheel."""

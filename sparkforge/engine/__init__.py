"""Container engines: what builds an image and what runs one, behind one small protocol."""

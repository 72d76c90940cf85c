"""`invoke build`: from a recipe to an image, each step from the store where nothing that it reads has changed."""

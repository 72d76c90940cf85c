"""`invoke build`: from a recipe to an image. Each step comes from the store if nothing it reads has changed."""

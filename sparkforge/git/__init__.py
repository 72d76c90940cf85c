"""The one door to git repositories."""

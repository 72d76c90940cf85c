"""What an image stands on, what goes into it, what it says of itself, and what became of its layers."""

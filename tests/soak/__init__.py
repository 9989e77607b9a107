"""Sessions in random states, and a model that knows what every command answers."""

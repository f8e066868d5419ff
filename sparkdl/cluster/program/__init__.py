"""The user's function and the modules that travel with it."""

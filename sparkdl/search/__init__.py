"""Which trials to run, and running them."""

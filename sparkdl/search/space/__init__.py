"""Search spaces: grids of values and dimensions to sample (runs anywhere)."""

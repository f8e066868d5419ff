"""The `sparkdl` command: one file per verb, no logic of its own."""

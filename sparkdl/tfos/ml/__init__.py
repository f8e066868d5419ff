"""The parts of the Spark ML stages: params, persistence and transform."""

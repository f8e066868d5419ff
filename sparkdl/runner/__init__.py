"""Run any request: prepare it, submit its trials to Spark, record the results (on the driver)."""

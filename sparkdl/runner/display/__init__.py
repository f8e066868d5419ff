"""Show a run to the user: progress bar, live table, logs, reports (runs on the driver)."""

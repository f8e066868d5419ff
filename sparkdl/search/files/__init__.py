"""Read search settings from the files of other systems (runs on the driver)."""

"""Search settings in the file formats of other systems (runs on the driver)."""

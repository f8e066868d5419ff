"""The reporter of trials and the exceptions, under maggy's names (runs anywhere)."""

"""Logs of model servers: read their lines, and count the features of their requests (tasks)."""

from sparkdl.monitoring.logs.log_forms import Event, read_event
from sparkdl.monitoring.logs.places import Place, places_of

__all__ = ["Event", "Place", "places_of", "read_event"]

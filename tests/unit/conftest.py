"""Settings of all unit tests: an example may take long on a machine that others share."""

from hypothesis import settings

settings.register_profile("unit", deadline=None)
settings.load_profile("unit")

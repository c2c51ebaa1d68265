"""Settings of all unit tests: how long an example takes says nothing on a machine that others share."""

from hypothesis import settings

settings.register_profile("unit", deadline=None)
settings.load_profile("unit")

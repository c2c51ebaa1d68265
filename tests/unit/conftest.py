"""Settings of all unit tests: an example may take long on a machine that others share."""

from hypothesis import settings

from tests.support.claims import takes_all

settings.register_profile("unit", deadline=None, max_examples=100 if takes_all() else 40)
settings.load_profile("unit")

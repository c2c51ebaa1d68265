# Pure: no MPI, threads, clock or environment.
"""Names that those who write a run's figures share with those who read them."""

RUN_FILE = "run.json"
NO_RESULT = "no_result"
"""Key under which an emulated run says why it has no result; None where it has one."""
WITHOUT_RESULT = 3
"""Status of `coarse run` then: the training is complete, and its times mean nothing."""

# Pure: no MPI, threads, clock or environment.
"""Names that writers of a run's figures share with their readers."""

RUN_FILE = "run.json"
NO_RESULT = "no_result"
"""Key of the reason why an emulated run has no result; None where it has one."""
WITHOUT_RESULT = 3
"""Status of `coarse run` without a result: the training is complete, and its times mean nothing."""

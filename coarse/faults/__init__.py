"""A feature: states of workers that outlive their processes, so that a job that is started again goes on to the bit."""

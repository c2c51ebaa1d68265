"""States of workers that outlive their processes, so that a restarted job continues to the bit."""

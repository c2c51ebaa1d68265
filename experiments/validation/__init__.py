"""Claims of papers beside what we find: rows, verdicts, inputs and what they may have been, and pages."""

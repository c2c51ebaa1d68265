"""The evaluation of the COARSE paper (HPCA 2022), one script per claim; see docs/evaluation.md."""

"""The FCDP paper's evaluation, figure by figure and table by table, simulated at its scale."""

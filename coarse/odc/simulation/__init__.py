"""On-demand communication on clusters that are stated, by the machines that run live."""

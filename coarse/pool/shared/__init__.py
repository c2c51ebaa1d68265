"""Memory that several hosts share without coherence of their caches, and a coherence checker for its users."""

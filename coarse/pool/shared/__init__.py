"""Memory that several hosts share without coherence of their caches, and a sanitizer for its users."""

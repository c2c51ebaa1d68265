"""Memory that several hosts share without coherence between their caches, and a sanitizer for its users."""

"""Memory that hosts share without coherence between their caches: messages over it, and a sanitizer for its users."""

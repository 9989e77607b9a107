"""Provider for environments of other providers in actors of a Ray cluster."""

"""Real sandboxes of every kind; a folder for each provider."""

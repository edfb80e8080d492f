"""Who may ask, and how much: API keys, the file that holds them, rate limits."""

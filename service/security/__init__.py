"""Who may ask for what: API keys, where they are kept, and what each route demands."""

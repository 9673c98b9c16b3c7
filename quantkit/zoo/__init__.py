"""Known models: their cards, and their files, which are downloaded once and verified."""

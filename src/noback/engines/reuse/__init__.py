"""What of a forward is computed once, or not at all: shared prefixes, frozen layers, tokens that nobody reads."""

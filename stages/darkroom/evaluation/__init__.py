"""What a model is worth on pictures that it has not seen: scores, tables, pictures."""

"""From the files in data/raw to the packed set: formats, checks, splits. Where they are from is the business of sources."""

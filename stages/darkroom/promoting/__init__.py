"""Who becomes champion: what a candidate is, how it is scored against the champion, and the gates that it must pass."""

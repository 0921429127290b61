"""One page that tells what came out of a run."""

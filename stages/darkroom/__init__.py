"""The rooms behind the stages: what the scripts in stages/ call."""

"""An exported model at work on people's pictures, without torch."""

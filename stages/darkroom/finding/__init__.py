"""Short trainings that find something out: a learning rate, the largest micro-batch, whether a network learns at all."""

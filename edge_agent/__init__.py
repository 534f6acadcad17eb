"""The device's agent: a supervisor without torch, and a training process for each round."""

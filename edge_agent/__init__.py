"""The device's program: a supervisor without torch, and a training process that lives for one round."""

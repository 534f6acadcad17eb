"""What the clients learn from: recordings, images and generated examples, and how they are divided."""

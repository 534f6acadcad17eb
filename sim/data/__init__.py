"""The clients' data: recordings, images and generated examples, and their partition into clients."""

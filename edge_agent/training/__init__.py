"""The training process: limited before torch is loaded, resumed after a crash, and ended after its round."""

"""The training process: limited before torch is loaded, resumed after a crash, gone after its round."""

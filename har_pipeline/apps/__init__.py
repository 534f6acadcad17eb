"""What apps on phones and watches write: found, told apart, and put together to recordings; each app has a reader."""

"""The device's way to the server: broker, downloads, uploads, enrolment and credentials."""

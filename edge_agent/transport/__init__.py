"""The device's connection to the server: broker, downloads, uploads, enrolment and credentials."""

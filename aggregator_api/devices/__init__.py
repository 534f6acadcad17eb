"""Devices: their presence, enrolment and management by an operator."""

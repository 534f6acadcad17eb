"""Exports of phone and watch apps: found, identified, and assembled into recordings; each app has a reader."""

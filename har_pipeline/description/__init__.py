"""Recordings of any layout: a TOML description of the files, and their reader.

For a stream, read the files one by one, in constant memory:

    description = read_description("data.toml")
    for file in find_files(description, folder).each():
        for recording in file_recordings(description, file):
            ...  # chunks of accelerometer and gyroscope in turn
"""

from har_pipeline.description.files import DescribedFile, DescribedFiles, find_files
from har_pipeline.description.model import Description, description_of, read_description
from har_pipeline.description.samples import file_recordings

__all__ = [
    "DescribedFile",
    "DescribedFiles",
    "Description",
    "description_of",
    "file_recordings",
    "find_files",
    "read_description",
]

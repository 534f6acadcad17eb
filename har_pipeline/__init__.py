"""From sensors to windows: readers of data sets, one causal stream pipeline, splits and normalization, in numpy."""

from gaitway.window_cache import default_cache_dir
from har_pipeline.errors import LabelError, PipelineError, SettingsError, SignalError, SourceError
from har_pipeline.normalization import ChannelStatistics, channel_statistics, normalize_clients
from har_pipeline.preparation import (
    dataset_labels,
    dataset_names,
    dataset_number,
    dataset_settings,
    prepare,
    prepare_members,
    recordings,
)
from har_pipeline.recording import CHANNELS, Origin, Recording, device_of, subject_of
from har_pipeline.settings import PipelineSettings
from har_pipeline.signals.checks import Finding, SignalChecks
from har_pipeline.splits import (
    Split,
    cut_validation,
    has_sessions,
    leave_devices_out,
    leave_subjects_out,
    session_folds,
    split_client,
)
from har_pipeline.streaming.stream import StreamPipeline, Window
from har_pipeline.streaming.windows import ClientWindows, WindowedDataset
from har_pipeline.units import SampleUnits

__all__ = [
    "CHANNELS",
    "ChannelStatistics",
    "ClientWindows",
    "Finding",
    "LabelError",
    "Origin",
    "PipelineError",
    "PipelineSettings",
    "Recording",
    "SampleUnits",
    "SettingsError",
    "SignalChecks",
    "SignalError",
    "SourceError",
    "Split",
    "StreamPipeline",
    "Window",
    "WindowedDataset",
    "channel_statistics",
    "cut_validation",
    "dataset_labels",
    "dataset_names",
    "dataset_number",
    "dataset_settings",
    "default_cache_dir",
    "device_of",
    "has_sessions",
    "leave_devices_out",
    "leave_subjects_out",
    "normalize_clients",
    "prepare",
    "prepare_members",
    "recordings",
    "session_folds",
    "split_client",
    "subject_of",
]

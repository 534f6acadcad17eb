"""The command line: run, sweep, compare, analyse, report, presets, pretrain."""

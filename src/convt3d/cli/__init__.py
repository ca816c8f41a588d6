"""The subcommands of `convt3d`: each takes its parsed arguments and returns an exit code."""

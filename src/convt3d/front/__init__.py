"""What callers see: functions and pipelines on their arrays, the problems' `solution`s, and the command line."""

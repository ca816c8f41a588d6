"""What callers see: functions and pipelines on their arrays, and the problems' `solution`s."""

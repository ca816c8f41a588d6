"""The steps of a pass: each knows what it reads, the scratch it needs, its code, the words it is given."""

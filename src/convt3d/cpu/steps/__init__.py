"""The steps of a sweep: each knows what it reads, the scratch it needs, its code, the words it is given."""

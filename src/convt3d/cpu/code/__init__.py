"""The steps of a sweep: each knows what it reads, the scratch it needs, its code and the numbers it is given."""

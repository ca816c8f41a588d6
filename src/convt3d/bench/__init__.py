"""The benchmark: suites of cases, contenders that run them, limits of the machine, rounds, results and their pictures.

suites/*.json -> suites -> cases -> measure (contenders, limits, rounds, alone) -> record -> figures
                                                                          -> table, page, figure, compare
"""

"""Refuses interpreters in which the package is not safe, before anything else is imported.

Workers stay inside native code until the process ends, so they would outlive an interpreter that ends earlier; numpy
does not support such interpreters either.
"""

try:
    import ctypes
except ImportError as problem:
    if "subinterpreter" not in str(problem):
        raise
    _number = 1  # of Python 3.12, which does not load ctypes there
else:
    _state = ctypes.pythonapi.PyInterpreterState_Get
    _state.restype, _state.argtypes = ctypes.c_void_p, ()
    _number_of = ctypes.pythonapi.PyInterpreterState_GetID
    _number_of.restype, _number_of.argtypes = ctypes.c_int64, (ctypes.c_void_p,)
    _number = _number_of(_state())

if _number != 0:
    raise ImportError(
        "convt3d: interpreter = a subinterpreter: must be the main interpreter of its process. "
        "Use a process of its own (with mod_wsgi: WSGIApplicationGroup %{GLOBAL})."
    )

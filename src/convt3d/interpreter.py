"""Refuses interpreters in which the package is not safe, before anything else is imported.

Workers stay inside native code until the process ends, so they would outlive an interpreter that ends earlier; numpy
does not support such interpreters either.
"""

import ctypes

_state = ctypes.pythonapi.PyInterpreterState_Get
_state.restype, _state.argtypes = ctypes.c_void_p, ()
_number = ctypes.pythonapi.PyInterpreterState_GetID
_number.restype, _number.argtypes = ctypes.c_int64, (ctypes.c_void_p,)

if _number(_state()) != 0:
    raise ImportError(
        "convt3d: interpreter = a subinterpreter: must be the main interpreter of its process. "
        "Use a process of its own (with mod_wsgi: WSGIApplicationGroup %{GLOBAL})."
    )

"""``redfuser bench suite``: a folder of problems in KernelBench's form, each compiled, held to eager, its report to what ran.

A problem is a Python file with ``Model``, ``get_inputs()`` and ``get_init_inputs()``. The folder is the user's: nothing of it
is here."""

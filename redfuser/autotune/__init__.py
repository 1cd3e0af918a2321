"""The tuner: which of the kernels that could be made of a cascade runs fastest on one device, and whether any beats torch.

    space     what may be chosen: strategy, splits and configuration, first by the model of resources
    prepare   a folder with every candidate built and the torch code it stands for; needs compilers and no GPU
    measure   the folder's candidates, held against the torch code and timed beside it; needs a GPU and no compiler
    judge     measured times to a decision; what is not clearly faster than the unfused region stays unfused
    records   decisions as reviewable JSON
    lookup    which record speaks of a kernel: explicit > project > user > shipped, and none: the model decides

A record chooses among candidates. What it names is lowered, checked and built as any other is; it lets nothing past a check.
"""

"""The correctness lane: a few hundred programs built here, run where a GPU is, judged there against float64 and eager torch.

    redfuser bench correctness --build DIR --target sm_90a     (compilers, no GPU)
    redfuser bench correctness --run DIR                       (a GPU, torch alone)
    redfuser bench correctness --interpret                     (neither: tile programs in the interpreter)

Every step leaves one small file per program in DIR, goes on where it was interrupted, and does its work in child processes,
so that a program that crashes or hangs costs only itself.
"""

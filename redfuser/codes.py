"""The code table: every error and every refusal, with its one-line meaning. docs/codes.md has a wrong/right example for
each; a test holds this table, that page and the places that raise the codes together.

Ranges: RF1xx input and import, RF2xx algebra refusals, RF3xx partition and strategy refusals, RF4xx lowering and build,
RF5xx run time, RF6xx artifact and cache, RF7xx tuning, RF8xx numerics, RF9xx internal.
"""

from __future__ import annotations

CODES: dict[str, str] = {
    "RF180": "the text of a cascade does not follow the grammar",
    "RF181": "a name in the text of a cascade is unknown, or means two things",
    "RF182": "dtypes in the text of a cascade do not agree",
    "RF183": "an axis or a shape in the text of a cascade does not fit",
    "RF184": "a file of cascades cannot be read",
    "RF185": "not a certificate or a fusion, or a damaged one",
    # input and import: the frontends
    "RF110": "not a model that can be imported",
    "RF111": "the model has dynamic dimensions",
    "RF112": "an input of an unsupported dtype or layout",
    "RF113": "an input or output that is not a tensor",
    "RF114": "the model changes tensors in place",
    "RF115": "operators that can neither be compiled nor run as torch calls",
    "RF116": "the model returns no tensor",
    "RF117": "a module or function without example arguments",
    "RF118": "torch.export could not export the model",
    "RF104": "target cuda on a machine without a GPU",
    "RF390": "fusion is switched off (REDFUSER_DISABLE)",
    "RF410": "no configuration fits the target",
    "RF411": "a cascade stays unfused under fallback=error",
    # refusals of the algebra
    "RF200": "not a well-formed cascade, or an unknown cast policy",
    "RF201": "no finite-rank decomposition into data and results",
    "RF202": "a result multiplies data inside an exponential",
    "RF203": "data is clipped at a bound that is a result",
    "RF204": "which elements count is decided by a result",
    "RF205": "a rounding depends on a result and may not move",
    "RF206": "a factor's sign is needed and not known",
    "RF207": "multiplied out, the terms would cancel",
    "RF208": "a result is indexed along the r-axis, or indexes data",
    "RF209": "the map under an ordered reduction does not keep the order",
    "RF210": "the decomposition is too large",
    "RF211": "the statements are not a cascade over one r-axis",
    "RF213": "the r-axis is empty",
    "RF214": "a value is needed at every step but known only after the row",
    # input: settings and command line
    "RF190": "unknown setting or option name",
    "RF191": "value not allowed for a setting or option",
    "RF192": "model file missing or of an unknown kind",
    "RF193": "module:function does not name a function that returns (model, args)",
    "RF194": "no such cascade, workload, shape or baseline",
    "RF195": "coverage below what was required",
    "RF196": "not a file of measurements, or a damaged one",
    # numerics
    "RF801": "result outside the numerics rule",
    # internal
    "RF900": "internal error: our bug",
    # build
    "RF450": "no CUDA compiler (nvcc) was found",
    "RF451": "the generated kernel source could not be executed",
    "RF452": "TileLang could not lower the kernel",
    "RF453": "nvcc rejected the kernel",
    "RF454": "compiling the kernel exceeded its time limit",
    "RF455": "the compile worker died while compiling the kernel",
    "RF456": "the kernel needs more shared memory than the architecture has",
    "RF457": "the built kernel's parameters do not match its declared arguments",
    "RF458": "the compile worker could not start",
    "RF459": "the architecture is not one RedFuser builds for",
    # run time
    "RF501": "wrong number of tensors",
    "RF502": "not a tensor",
    "RF503": "tensor on the wrong device",
    "RF504": "tensor of the wrong dtype",
    "RF505": "tensor of the wrong shape",
    "RF506": "tensor is not contiguous",
    "RF507": "tensor is not aligned",
    "RF508": "the GPU driver refused a call",
    "RF509": "no GPU driver, or no GPU of the kernel's kind",
    "RF510": "the kernel was built for another GPU architecture",
    "RF511": "the inputs' structure is not the one the model was compiled for",
    "RF512": "the CUDA graph cannot be captured or replayed for these inputs",
    "RF513": "the kernel's shared object could not be loaded",
    "RF514": "an input other than a tensor differs from the one the model was compiled with",
    # artifact and cache
    "RF601": "not a RedFuser artifact, or a damaged one",
    "RF602": "the artifact's format is newer than this RedFuser",
    "RF603": "a file in the artifact does not match its recorded hash",
    "RF604": "a file is missing from the artifact, or one is in it that should not be",
    "RF605": "the artifact holds no kernels for this architecture",
    "RF606": "the artifact's graph contains something other than tensor operations",
    "RF607": "the artifact could not be read or written",
    "RF608": "a cache entry was damaged and has been rebuilt",
    # RF35x: strategies
    "RF350": "a strategy, split count or segment length that means nothing",
    "RF351": "the segment program is not well formed (a verifier failed: our bug)",
    # RF43x, RF44x: the CPU target
    "RF430": "the CPU target cannot compute an operation or reducer",
    "RF431": "the CPU target has no arithmetic in a dtype",
    "RF432": "the CPU kernel's scratch does not fit",
    "RF433": "a symbolic extent where a static one is needed",
    "RF434": "a value is read at another place of the row, which is not held",
    "RF440": "no C compiler to link a CPU kernel with",
    "RF441": "a CPU kernel did not build",
    # RF47x: the outer graph
    "RF470": "a fused region cannot run at any one place of the outer graph (our bug)",
    "RF471": "operators that have no torch spelling",
    "RF472": "a fused region without a kernel name (our bug)",
}

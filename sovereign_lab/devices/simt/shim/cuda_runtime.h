// Provided by cuda_shim.h.

// The KV cache holds `KV` (half or float, chosen when the kernel is compiled); kernels compute in float.
#pragma once
#include <cuda_fp16.h>

__device__ __forceinline__ float to_float(half v) { return __half2float(v); }
__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ void store(half* p, float v) { *p = __float2half(v); }
__device__ __forceinline__ void store(float* p, float v) { *p = v; }

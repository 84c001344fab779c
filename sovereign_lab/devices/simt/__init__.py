"""The SIMT device: the lab's CUDA C++ files, unmodified, on a CPU, thread by thread."""

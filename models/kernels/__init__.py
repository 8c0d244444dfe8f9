"""Building blocks of compiled kernels: LLVM intrinsics, elementary functions, threads; no torch."""

"""Building blocks of compiled kernels: LLVM intrinsics, elementary functions, sums, threads; no torch."""

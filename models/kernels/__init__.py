"""Building blocks of compiled kernels, without torch: LLVM intrinsics, elementary functions, sums, threads."""

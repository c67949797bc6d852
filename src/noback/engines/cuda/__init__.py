"""What only a CUDA GPU does: captured forwards, and kernels of its own."""

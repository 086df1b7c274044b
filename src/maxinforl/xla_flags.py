"""XLA's flags for the CPU. JAX reads them when it is imported, so this module is imported first."""

import os

# Threefry is a loop of five rounds. XLA compiles loops over arrays smaller than this threshold to one kernel, others to
# a kernel per operation and round: 256 random numbers take 3 us instead of 75. The numbers are the same.
SMALL_LOOPS = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=65536"

if "xla_backend_extra_options" not in (flags := os.environ.get("XLA_FLAGS", "")):
    os.environ["XLA_FLAGS"] = f"{flags} {SMALL_LOOPS}".strip()
